// The Worker: the first message has the module and the files, each further one a request or a file of the user's.
let simulator;

onmessage = async ({ data: { id, module, files, write, request, argument } }) => {
  try {
    if (module) simulator = startSimulator(module, files);
    const { ask, write: put } = await simulator;
    if (write) put(...write);
    if (request) postMessage({ id, answer: ask(request, argument) });
  } catch (error) {  // it has not started, or the module has ended: only a new one goes on
    postMessage({ broken: String(error) });
  }
};

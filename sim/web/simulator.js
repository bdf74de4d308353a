// The simulator and its files, in a Worker or in node: startSimulator(module, files) gives ask(request, argument), which
// simulator.cpp answers, and write(name, bytes). `Equipoise` is what emscripten made.
async function startSimulator(module, files) {
  const program = await new Promise((accept, refuse) => Equipoise({
    instantiateWasm(imports, receive) {
      WebAssembly.instantiate(module, imports).then((instance) => receive(instance, module)).catch(refuse);
      return {};
    },
  }).then(accept, refuse));
  const { FS } = program;
  const write = (name, bytes) => {
    FS.mkdirTree(name.slice(0, name.lastIndexOf("/")) || "/");
    FS.writeFile(name, bytes);
  };
  for (const [name, bytes] of Object.entries(files)) write(name, bytes);
  FS.symlink("/bin/equipoise", "/proc/self/exe");  // an installed program, so that it finds what is shipped with it
  const ask = (request, argument = {}) =>
    JSON.parse(program.ccall("equipoise_answer", "string", ["string", "string"], [request, JSON.stringify(argument)]));
  return { ask, write };
}

// {name: bytes} of what build.py has put together: the length of an index, the index, and the files.
function unpackArchive(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const index = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  return Object.fromEntries(index.map(([name, size]) => {
    const bytes = new Uint8Array(buffer, at, size);
    at += size;
    return [name, bytes];
  }));
}

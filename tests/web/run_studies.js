// Runs shipped studies by the page's own simulator, in node: run_studies.js PAGE FOLDER NAME... prints a line of JSON for each,
// {name, seconds, summary} or {name, error}, and writes FOLDER/NAME.json with its plans.
const fs = require("fs"), vm = require("vm"), zlib = require("zlib");

const [page, folder, ...names] = process.argv.slice(2);
const html = fs.readFileSync(page, "utf8");
const block = (id) => new RegExp(`<script type="[^"]*" id="${id}">([^<]*)</script>`).exec(html)[1];

async function main() {
  Object.assign(globalThis, { require, __filename, __dirname });  // as a module of node has them
  vm.runInThisContext(JSON.parse(block("worker")));
  const packed = zlib.gunzipSync(Buffer.from(block("archive"), "base64"));
  const files = unpackArchive(packed.buffer.slice(packed.byteOffset, packed.byteOffset + packed.length));
  const module = await WebAssembly.compile(files["simulator.wasm"]);
  for (const name of names) {
    const { ask } = await startSimulator(module, files);
    const begin = performance.now();
    const answer = (request, argument) => {
      const given = ask(request, argument);
      if (given.error) throw new Error(given.error);
      return given;
    };
    const result = { name };
    try {
      const file = `traces/studies/${name}.json`;
      const study = JSON.parse(new TextDecoder().decode(files["/" + file]));
      const [{ rows }] = answer("open", { study, file });
      rows.forEach((row, i) => answer("run", { row: i }));
      result.summary = answer("report", {}).summary;
      fs.writeFileSync(`${folder}/${name}.json`, answer("plans", {}).text);
    } catch (error) {
      result.error = error.message;
    }
    result.seconds = (performance.now() - begin) / 1000;
    console.log(JSON.stringify(result));
  }
}

main().catch((error) => { console.error(error); process.exit(1); });

// The page: the study, its run in a Worker, and the report, which is the program's own page in a frame.

const $ = (id) => document.getElementById(id);
const kFirst = "/traces/studies/first-study.json";
const kStudyFile = "study.json";
const kRedraw = 400;  // ms between two reports of one run

let study, lists, archive, module;
let findsLayout = false;
let sweep = ["", ""];        // a key and its values; none if the key is empty
const files = new Map();     // the user's: name -> {bytes, kind, sha256}
let missing = new Map();     // of a link, which `files` lacks: name -> sha256
const offered = new Map();   // policies that a box is shown for
let last = {};               // what the last run gave: {html, summary, plans}
let sweptState = null;       // what the sweep that is shown is of
let lengthsOf = "";          // SHA-256 of the file whose lengths are shown

// --- The Workers. The first has the study, and all of them share the points of a sweep. A run that is no longer wanted ends
// with them, since a row cannot be interrupted from outside.

class Stopped extends Error {}
const workers = [];
let waiting = new Map(), asked = 0;
const kWorkers = Math.min(8, navigator.hardwareConcurrency || 1);

function startWorker() {
  const text = JSON.parse($("worker").textContent);
  const worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
  const own = Object.fromEntries([...files].map(([name, { bytes }]) => ["/" + name, bytes]));
  worker.postMessage({ module, files: { ...archive, ...own } });
  const ended = (why) => stopWorkers(new Error(`the simulator ended: ${why}`));
  worker.onerror = ({ message }) => ended(message);
  worker.onmessage = ({ data: { id, answer, broken } }) => {
    if (broken) return ended(broken);
    const asker = waiting.get(id);
    if (!asker) return;
    waiting.delete(id);
    if (answer.error) asker.refuse(new Error(answer.error));
    else asker.accept(answer);
  };
  return worker;
}

function stopWorkers(why = new Stopped()) {
  for (const worker of workers) worker.terminate();
  workers.length = 0;
  for (const { refuse } of waiting.values()) refuse(why);
  waiting = new Map();
}

// Asks the Worker of that place, which starts where it does not run; places are taken in order.
function ask(request, argument, place = 0) {
  const id = ++asked;
  workers[place] ??= startWorker();
  workers[place].postMessage({ id, request, argument });
  return new Promise((accept, refuse) => waiting.set(id, { accept, refuse }));
}

// --- What is shown.

function say(text) {
  $("status").textContent = text;
}

function busy(is) {
  $("report").setAttribute("aria-busy", is);
  $("stop").hidden = !is;
  if (!is) $("progress").hidden = true;
}

function complain(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

const kFrames = { "study-report": "Report of the study", "lengths-report": "Lengths of your documents", "sweep-report": "Report of the sweep" };

// Shows a page of the program in a frame as high as its content. The earlier one stays until the new one is drawn.
function show(name, html) {
  const frame = el("iframe", { class: `next ${name}`, title: kFrames[name], "data-page": name });
  for (const undrawn of document.querySelectorAll(`.next.${name}`)) undrawn.remove();
  frame.addEventListener("load", () => {
    const inside = frame.contentDocument, fit = () => { frame.style.height = inside.documentElement.offsetHeight + "px"; };
    inside.querySelector(".bar").style.display = "none";
    if (inside.documentElement.dataset.theme !== document.documentElement.dataset.theme) inside.getElementById("theme").click();
    fit();
    new ResizeObserver(fit).observe(inside.body);
    $(name)?.remove();
    frame.id = name;
    frame.className = "";
  });
  frame.srcdoc = html;
  frame.style.order = Object.keys(kFrames).indexOf(name);
  $("frames").append(frame);
}

// A frame is as high as its content, but on paper it has another width. 680 pixels fit on A4 and on Letter.
function fitToPaper({ type }) {
  for (const { style, contentWindow } of document.querySelectorAll("iframe")) {
    contentWindow.dispatchEvent(new Event(type));  // it opens or closes what it has before it is measured
    style.width = type === "beforeprint" ? "680px" : "";
    style.height = contentWindow.document.documentElement.offsetHeight + "px";
  }
}

// What the sweep depends on: the study, but not its value of the key that is swept. Of a study whose layout is still to be
// found nothing is known.
function stateOfSweep() {
  if (!sweep[0] || findsLayout) return null;
  const others = structuredClone(study);
  put(others, sweep[0], undefined);
  return JSON.stringify([others, sweep, filesNamed()]);
}

// What is shown is of an earlier run from now on.
function ageResults() {
  last = {};
  if (stateOfSweep() !== sweptState) sweptState = null;
  const keeps = { "sweep-report": sweptState !== null, "lengths-report": new Map(filesNamed()).get(study.trace?.file) === lengthsOf };
  for (const frame of document.querySelectorAll("iframe")) {
    if (keeps[frame.dataset.page]) continue;
    if (frame.id) frame.className = "earlier";
    else frame.remove();
  }
  drawTaken();
}

// Removes what no page of this run will replace.
function dropEarlier() {
  for (const frame of document.querySelectorAll(".earlier")) if (!document.querySelector(`.next.${frame.id}`)) frame.remove();
  drawTaken();
}

const swept = () => `${sweep[0]}=${sweep[1]}`;
const quoted = (text) => (/^[\w.,=+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);  // for a shell
const commandOf = () => ["equipoise", "study", kStudyFile, ...(sweep[0] ? [`--sweep=${swept()}`] : []), "--out", "out"].map(quoted).join(" ");

// Of the files that the study names, [name, sha256]. Of a file that is missing it is the link's.
function filesNamed() {
  const text = JSON.stringify(study);
  const all = new Map([...[...files].map(([name, { sha256 }]) => [name, sha256]), ...missing]);
  return [...all].filter(([name]) => text.includes(JSON.stringify(name)));
}

function drawTaken() {
  const json = JSON.stringify(study, null, 2);
  const text = el("textarea", { rows: 12, spellcheck: "false", "aria-label": "The study as JSON" });
  text.value = json;
  const button = (name, act) => el("button", { type: "button", onclick: act }, name);
  const copy = (what) => navigator.clipboard?.writeText(what).then(() => say("Copied."), () => complain("The browser does not allow copying."));
  $("taken").replaceChildren(
    el("h2", {}, "Take it away"),
    el("p", {}, "Save the study in the folder of a checkout, together with your own files, and run:"),
    el("pre", { tabindex: 0, role: "region", "aria-label": "Command" }, el("code", { id: "command" }, commandOf())),
    el("div", { class: "controls" }, button("Copy the command", () => copy(commandOf())),
      button("Download study.json", () => save(kStudyFile, new Blob([json + "\n"], { type: "application/json" }))),
      button("Copy a link to this", () => copy(location.href)),
      last.html ? button("Download report.html", () => save("report.html", new Blob([last.html], { type: "text/html" }))) : null,
      last.summary ? button("Download summary.json", () => save("summary.json", new Blob([JSON.stringify(last.summary, null, 2) + "\n"], { type: "application/json" }))) : null,
      last.plans ? button("Download plan.json", () => save("plan.json", new Blob([last.plans], { type: "application/json" }))) : null),
    ...filesNamed().map(([name, sha256]) => el("p", { class: "note" }, `${name} has SHA-256 ${sha256}. A link has only its name and hash.`)),
    el("details", {}, el("summary", {}, "The study as JSON, with all keys to edit"), text,
      button("Use this", () => { try { use(JSON.parse(text.value), kStudyFile); } catch (error) { complain(`${kStudyFile}: ${error.message}`); } })));
}

// Moves the study over the values of the sweep. The report follows the hand; the link follows when it lets go.
function slider(label) {
  const values = sweep[1].split(","), now = String(at(study, sweep[0]) ?? "");
  if (!values.includes(now)) values.unshift(now);
  const text = (value) => `${label}: ${value || "not set"}`, name = el("span", {}, text(now));
  const input = el("input", {
    type: "range", id: "slider", min: 0, max: values.length - 1, value: values.indexOf(now), "aria-valuetext": now,
    oninput: () => {
      const value = values[input.value];
      put(study, sweep[0], value ? valueOf(value) : undefined);
      name.textContent = text(value);
      input.setAttribute("aria-valuetext", value);
      runStudy();
    },
    onchange: () => { drawInputs(); pushLink(); },
  });
  return el("label", {}, name, input);
}

function drawInputs() {
  const changed = (act) => { act(study); commit(); };
  const shipped = Object.keys(archive).filter((name) => name.startsWith("/traces/studies/"));
  const opened = { open: $("more-policies")?.open };
  const layout = el("fieldset", {}, el("legend", {}, "Layout"),
    el("label", { class: "box" }, el("input", { type: "checkbox", checked: findsLayout, onchange: (event) => { findsLayout = event.target.checked; commit(); } }), "Find the fastest that fits"),
    el("div", { class: "degrees" }, ...layoutFields(study).map((one) => field(one, (act) => { findsLayout = false; changed(act); }))));
  const chosen = sweeps.find(([, key]) => key === sweep[0]) ?? [sweep[0], sweep[0], sweep[1]];
  const sweepFields = el("fieldset", {}, el("legend", {}, "Sweep one key"),
    select("Key", [...new Set([...sweeps, chosen])].map(([label, key]) => [key, label]), sweep[0], (key) => { sweep = [key, sweeps.find((one) => one[1] === key)?.[2] ?? ""]; commit(); }),
    ...(sweep[0] ? [el("label", {}, "Values, with commas", el("input", { type: "text", value: sweep[1], onchange: (event) => { sweep = [sweep[0], event.target.value.replace(/\s/g, "")]; commit(); } })),
      slider(chosen[0])] : []));
  renew($("fields"),
    select("Begin with", [["", "a shipped study"], ...shipped.map((name) => [name, name.split("/").pop().replace(".json", "")])], "", (name) => { if (name) use(shippedStudy(name), name); }),
    ...fieldsOf(study, lists, files).map((one) => field(one, changed)), layout, ...policyBoxes(study, offered, lists, changed), sweepFields);
  if (opened.open) $("more-policies").open = true;
}

// --- A run.

let run = 0;

async function runStudy(prepare = () => {}) {
  const mine = ++run;
  busy(true);
  if (waiting.size) stopWorkers();
  complain("");
  $("go").hidden = true;
  ageResults();
  try {
    await prepare();
    if (mine !== run) return;
    await runOnce();
  } catch (error) {
    if (mine !== run) return;
    if (error instanceof Stopped) {
      say("Stopped. What had run is below.");
      $("go").hidden = false;
    } else {
      say("This study does not run.");
      complain(error.message);
    }
  }
  if (mine !== run) return;
  dropEarlier();
  busy(false);
}

async function runOnce() {
  missing = new Map(filesNamed().filter(([name, sha256]) => files.get(name)?.sha256 !== sha256));
  if (missing.size) throw new Error(`This study reads ${[...missing].map(([name, sha256]) => `${name} (SHA-256 ${sha256})`).join(", ")}, which is not in a link: drop the file here.`);
  if (findsLayout) await findLayout();
  const [only] = await ask("open", { study, file: kStudyFile });
  const begin = (label, done, all) => {
    $("progress").value = done / all;
    say(`Running ${label}, ${done + 1} of ${all}.`);
  };
  await runRows(only, 0, 0, begin, async (done) => {
    last = await ask("report", {});
    show("study-report", last.html);
    if (!done) return;
    last.plans = (await ask("plans", {})).text;
    say(new DOMParser().parseFromString(last.html, "text/html").querySelector("h1").textContent);
  });
  if (sweep[0] && sweptState === null) await runSweep();
}

async function findLayout() {
  const gpus = gpusOf(study);
  say(`Looking for a layout on ${gpus} GPUs.`);
  const { parallel } = await ask("layout", { study: { ...study, cluster: { ...study.cluster, gpus: undefined } }, gpus });
  if (!parallel) throw new Error(`No layout of ${gpus} GPUs fits: more GPUs, or GPUs with more memory.`);
  study.parallel = parallel;
  put(study, "cluster.gpus", undefined);
  drawInputs();
}

// Runs the rows of the case of that number in the Worker of that place: its baseline first, rows that pack slowly last.
// begin(label, done, all) is called before each, draw(done) now and then.
async function runRows({ rows, baseline }, number, place, begin, draw) {
  const order = rows.map((row, i) => i).sort((a, b) => (rows[b].label === baseline) - (rows[a].label === baseline) || rows[a].slow - rows[b].slow || a - b);
  let drawn = -Infinity;  // the first row at once
  $("progress").hidden = false;
  for (const [done, i] of order.entries()) {
    begin(rows[i].label, done, order.length);
    await ask("run", { case: number, row: i }, place);
    const all = done + 1 === order.length;
    const next = all ? null : rows[order[done + 1]];
    if (all || performance.now() - drawn > kRedraw || next.slow && !rows[i].slow) {
      await draw(all);
      drawn = performance.now();
    }
  }
}

async function runSweep() {
  const verdict = $("status").textContent, opened = { study, file: kStudyFile, sweep: [swept()] };
  const cases = await ask("open", opened), points = [], left = [...cases.keys()];
  const draw = async (place) => show("sweep-report", (await ask("sweep", { points: points.filter(Boolean) }, place)).html);
  const begin = (name) => (label) => {
    const done = points.filter(Boolean).length;
    $("progress").value = done / cases.length;
    say(`Running ${name}: ${label}, ${done} of ${cases.length} cases are ready.`);
  };
  const work = async (place) => {
    if (place) await ask("open", opened, place);
    for (let number; (number = left.shift()) !== undefined;) {
      await runRows(cases[number], number, place, begin(cases[number].name), () => {});
      points[number] = await ask("point", { case: number }, place);
      if (left.length) await draw(place);
    }
  };
  try {
    await Promise.all(Array.from({ length: Math.min(kWorkers, cases.length) }, (_, place) => work(place)));
  } catch (error) {
    left.length = 0;  // the others end with the point that they run
    throw error;
  }
  await draw(0);
  sweptState = stateOfSweep();
  say(verdict);
}

// --- Studies and files that come in.

const shippedStudy = (name) => JSON.parse(new TextDecoder().decode(archive[name]).replaceAll('"../recorded/', '"traces/recorded/'));

function use(given, name) {
  if (given === null || typeof given !== "object" || !Array.isArray(given.policies)) throw new Error(`${name}: expected a study with "policies"`);
  study = given;
  findsLayout = false;
  offered.clear();
  commit();
}

// Takes what a user drops, by its content.
async function take(file) {
  const bytes = new Uint8Array(await file.arrayBuffer()), name = file.name.replace(/[^\w.-]/g, "_");
  let json = null;
  if (bytes[0] === 0x7b || /\.json$/.test(name)) {
    try { json = JSON.parse(new TextDecoder().decode(bytes)); } catch (error) { if (/\.json$/.test(name)) throw new Error(`${file.name}: ${error.message}`); }
  }
  if (json?.schema === "equipoise.summary/1") return use(json.receipt?.study ?? json.study?.settings, file.name);
  if (json?.policies) return use(json, file.name);
  if ([kStudyFile, ".", "..", ...lists.folders].includes(name)) throw new Error(`${file.name}: expected another name for a file`);
  const kind = json?.model_type || json?.architectures ? "config" : "lengths";
  stopWorkers();  // those that run do not have the file
  workers[0] = startWorker();
  workers[0].postMessage({ write: ["/" + name, bytes] });
  let found = {};
  try {
    if (kind === "lengths") found = await ask("trace", { file: name });
    const { sha256 } = await ask("hash", { file: name });
    if ((missing.get(name) ?? sha256) !== sha256) throw new Error(`${file.name}: expected the link’s file, whose SHA-256 is ${missing.get(name)}, found ${sha256}`);
    files.set(name, { bytes, kind, sha256 });
  } catch (error) {
    if (!(error instanceof Stopped)) stopWorkers();  // their files are no longer those of `files`
    throw error;
  }
  missing.delete(name);
  if (kind === "config") study.model = { hf_config: name };
  else if (study.trace?.file !== name) study.trace = { file: name, repeat: true };
  commit();
  if (!found.html) return;
  lengthsOf = files.get(name).sha256;
  show("lengths-report", found.html);
}

async function takeAll(list) {
  for (const file of list) {
    try {
      await take(file);
    } catch (error) {
      if (!(error instanceof Stopped)) complain(error.message);
    }
  }
}

// --- The link: the study, compressed, behind #.

const through = (bytes, stream) => new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer();

function fromBase64(text) {  // a loop: an iterator over megabytes takes a third of a second
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

async function linkOf(state) {
  const packed = new Uint8Array(await through(JSON.stringify(state), new CompressionStream("deflate-raw")));
  return "#" + btoa(Array.from(packed, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

async function stateOf(link) {
  const bytes = fromBase64(link.slice(1).replaceAll("-", "+").replaceAll("_", "/"));
  return JSON.parse(new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw"))));
}

// The link of the study as it is now becomes a new entry of the browser's history.
async function pushLink() {
  const link = await linkOf({ study, findsLayout, sweep, files: Object.fromEntries(filesNamed()) });
  if (link !== location.hash) history.pushState(null, "", link);
}

const commit = () => runStudy(async () => {
  drawInputs();
  await pushLink();
});

async function openLink() {
  const state = location.hash.length > 1 ? await stateOf(location.hash) : { study: shippedStudy(kFirst) };
  ({ study, findsLayout = false, sweep = ["", ""] } = state);
  missing = new Map(Object.entries(state.files ?? {}));
  offered.clear();
  drawInputs();
  await runStudy();
}

// A damaged link is said to be one, and the first study is shown.
async function openLinkOrFirst() {
  try {
    await openLink();
  } catch (error) {
    history.replaceState(null, "", "#");
    await openLink();
    complain(`The link is damaged: ${error.message}`);
  }
}

// The module and what is shipped: both are in the page, or on the server next to it.
async function load() {
  const own = $("archive").textContent;
  const unpacked = async (packed) => unpackArchive(await through(packed, new DecompressionStream("gzip")));
  if (own) {
    ({ "simulator.wasm": module, ...archive } = await unpacked(fromBase64(own)));
    module = await WebAssembly.compile(module);
  } else {
    const shipped = fetch("shipped.bin").then((answer) => answer.arrayBuffer()).then(unpacked);
    module = await WebAssembly.compileStreaming(fetch("simulator.wasm"));
    archive = await shipped;
  }
}

async function start() {
  setUpTheme();
  $("fold").open = matchMedia("(min-width: 801px)").matches;
  $("theme").addEventListener("click", () => {
    for (const frame of document.querySelectorAll("iframe")) frame.contentDocument.getElementById("theme").click();
  });
  await load();
  lists = await ask("lists", {});
  addEventListener("popstate", openLinkOrFirst);
  addEventListener("beforeprint", fitToPaper);
  addEventListener("afterprint", fitToPaper);
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); takeAll(event.dataTransfer.files); });
  $("file").addEventListener("change", (event) => takeAll(event.target.files));
  $("inputs").addEventListener("submit", (event) => event.preventDefault());
  $("stop").addEventListener("click", () => stopWorkers());
  $("go").addEventListener("click", () => runStudy());
  await openLinkOrFirst();
}

start().catch((error) => complain(`The page does not start: ${error.message}`));

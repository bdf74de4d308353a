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
let last = {};               // what the last run gave: {html, summary}

// --- The Worker. A run that is no longer wanted ends with its Worker, since a row cannot be interrupted from outside.

class Stopped extends Error {}
let worker = null, waiting = new Map(), asked = 0;

function startWorker() {
  const text = JSON.parse($("worker").textContent);
  worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
  const own = Object.fromEntries([...files].map(([name, { bytes }]) => ["/" + name, bytes]));
  worker.postMessage({ module, files: { ...archive, ...own } });
  const ended = (why) => stopWorker(new Error(`the simulator ended: ${why}`));
  worker.onerror = ({ message }) => ended(message);
  worker.onmessage = ({ data: { id, answer, broken } }) => {
    if (broken) return ended(broken);
    const asker = waiting.get(id);
    if (!asker) return;
    waiting.delete(id);
    if (answer.error) asker.refuse(new Error(answer.error));
    else asker.accept(answer);
  };
}

function stopWorker(why = new Stopped()) {
  if (worker) worker.terminate();
  worker = null;
  for (const { refuse } of waiting.values()) refuse(why);
  waiting = new Map();
}

function ask(request, argument) {
  if (!worker) startWorker();
  const id = ++asked;
  worker.postMessage({ id, request, argument });
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

// Shows a page of the program in a frame as high as its content. The earlier one stays until the new one is drawn.
function show(name, html) {
  const frame = el("iframe", { class: `next ${name}`, title: name === "study-report" ? "Report of the study" : "Report of the sweep" });
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
  if (name === "study-report") $("frames").prepend(frame);
  else $("frames").append(frame);
}

// What is shown is of an earlier run from now on.
function ageResults() {
  last = {};
  for (const frame of document.querySelectorAll("iframe")) {
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
      last.summary ? button("Download summary.json", () => save("summary.json", new Blob([JSON.stringify(last.summary, null, 2) + "\n"], { type: "application/json" }))) : null),
    ...filesNamed().map(([name, sha256]) => el("p", { class: "note" }, `${name} has SHA-256 ${sha256}. A link has only its name and hash.`)),
    el("details", {}, el("summary", {}, "The study as JSON, with all keys to edit"), text,
      button("Use this", () => { try { use(JSON.parse(text.value), kStudyFile); } catch (error) { complain(`${kStudyFile}: ${error.message}`); } })));
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
    sweep[0] ? el("label", {}, "Values, with commas", el("input", { type: "text", value: sweep[1], onchange: (event) => { sweep = [sweep[0], event.target.value.replace(/\s/g, "")]; commit(); } })) : null);
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
  if (waiting.size) stopWorker();
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
  await runRows(0, only, "", async (share, done) => {
    const { html, summary } = await ask("report", {});
    last = { html, summary };
    show("study-report", html);
    if (done) say(new DOMParser().parseFromString(html, "text/html").querySelector("h1").textContent);
  });
  if (sweep[0]) await runSweep();
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

// Runs a case's rows: its baseline first, rows that pack slowly last. draw(share, done) is called now and then.
async function runRows(number, { rows, baseline }, place, draw) {
  const order = rows.map((row, i) => i).sort((a, b) => (rows[b].label === baseline) - (rows[a].label === baseline) || rows[a].slow - rows[b].slow || a - b);
  let drawn = performance.now();
  $("progress").hidden = false;
  for (const [done, i] of order.entries()) {
    $("progress").value = done / order.length;
    say(`Running ${place}${rows[i].label}, ${done + 1} of ${order.length}.`);
    await ask("run", { case: number, row: i });
    const all = done + 1 === order.length;
    const next = all ? null : rows[order[done + 1]];
    if (all || performance.now() - drawn > kRedraw || next.slow && !rows[i].slow) {
      await draw((done + 1) / order.length, all);
      drawn = performance.now();
    }
  }
}

async function runSweep() {
  const verdict = $("status").textContent;
  const cases = await ask("open", { study, file: kStudyFile, sweep: [swept()] });
  for (const [number, one] of cases.entries()) {
    await runRows(number, one, `${one.name}: `, () => {});
    await ask("add", { case: number });
    show("sweep-report", (await ask("sweep", {})).html);
  }
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
  if (name === kStudyFile || archive["/" + name]) throw new Error(`${file.name}: expected another name for a file`);
  const kind = json?.model_type || json?.architectures ? "config" : "lengths";
  if (waiting.size) stopWorker();
  if (!worker) startWorker();
  worker.postMessage({ write: ["/" + name, bytes] });
  let found = {};
  try {
    if (kind === "lengths") found = await ask("trace", { file: name });
    const { sha256 } = await ask("hash", { file: name });
    if ((missing.get(name) ?? sha256) !== sha256) throw new Error(`${file.name}: expected the link’s file, whose SHA-256 is ${missing.get(name)}, found ${sha256}`);
    files.set(name, { bytes, kind, sha256 });
  } catch (error) {
    if (!(error instanceof Stopped)) stopWorker();  // it has other bytes than `files`
    throw error;
  }
  missing.delete(name);
  if (kind === "config") study.model = { hf_config: name };
  else if (study.trace?.file !== name) study.trace = { file: name, repeat: true };
  if (found.documents) say(`${file.name}: ${grouped(found.documents)} documents, ${grouped(found.tokens)} tokens, longest ${grouped(found.longest)}.`);
  commit();
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
const fromBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

async function linkOf(state) {
  const packed = new Uint8Array(await through(JSON.stringify(state), new CompressionStream("deflate-raw")));
  return "#" + btoa(Array.from(packed, (byte) => String.fromCharCode(byte)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

async function stateOf(link) {
  const bytes = fromBase64(link.slice(1).replaceAll("-", "+").replaceAll("_", "/"));
  return JSON.parse(new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw"))));
}

// A change is drawn, is behind the link, and runs.
const commit = () => runStudy(async () => {
  drawInputs();
  const link = await linkOf({ study, findsLayout, sweep, files: Object.fromEntries(filesNamed()) });
  if (link !== location.hash) history.pushState(null, "", link);
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

async function start() {
  setUpTheme();
  $("fold").open = matchMedia("(min-width: 801px)").matches;
  $("theme").addEventListener("click", () => {
    for (const frame of document.querySelectorAll("iframe")) frame.contentDocument.getElementById("theme").click();
  });
  archive = unpackArchive(await through(fromBase64($("archive").textContent), new DecompressionStream("gzip")));
  module = await WebAssembly.compile(archive["simulator.wasm"]);
  delete archive["simulator.wasm"];
  lists = await ask("lists", {});
  addEventListener("popstate", openLinkOrFirst);
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); takeAll(event.dataTransfer.files); });
  $("file").addEventListener("change", (event) => takeAll(event.target.files));
  $("inputs").addEventListener("submit", (event) => event.preventDefault());
  $("stop").addEventListener("click", () => stopWorker());
  $("go").addEventListener("click", () => runStudy());
  await openLinkOrFirst();
}

start().catch((error) => complain(`The page does not start: ${error.message}`));

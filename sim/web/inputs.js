// The fields of the page. Each shows one key of the study's JSON, which is the page's only state, and sets it.

const kOwn = "(as in the study)";

const at = (node, path) => path.split(".").reduce((inner, key) => (inner === null || typeof inner !== "object" ? undefined : inner[key]), node);

function put(node, path, value) {
  const keys = path.split("."), last = keys.pop();
  // Only of a key of its own: a link can name any, such as that of all objects' prototype.
  for (const key of keys) node = node[key] = Object.hasOwn(node, key) && node[key] !== null && typeof node[key] === "object" ? node[key] : {};
  if (value === undefined) delete node[last];
  else node[last] = value;
}

// What a user types: a number, a size such as 128K, or a name.
const valueOf = (text) => (text.trim() === "" ? undefined : /^-?\d+(\.\d+)?$/.test(text.trim()) ? Number(text) : text.trim());

const degrees = ["tensor", "context", "pipeline", "data"];
const gpusOf = (study) => at(study, "cluster.gpus") ?? degrees.reduce((product, axis) => product * (at(study, `parallel.${axis}`) ?? 1), 1);

// As many GPUs as asked for: DP follows from them.
function setGpus(study, gpus) {
  put(study, "cluster.gpus", gpus);
  if (study.parallel && gpus !== undefined) delete study.parallel.data;
}

const labelOf = (entry) => (typeof entry === "string" ? entry : entry.label ?? entry.name);

// [label, the study's value as text, act(study, text), names to choose from, or null for a text of one's own]
function fieldsOf(study, lists, files) {
  const key = (label, path, names = null) => [label, at(study, path) ?? "", (to, text) => put(to, path, valueOf(text)), names];
  const chosen = (label, value, act, names) => [label, names.includes(value) ? value : kOwn, act, names.includes(value) ? names : [kOwn, ...names]];
  const names = (what) => lists[what].map(({ name }) => name);
  const own = [...files.keys()];
  const model = study.model?.hf_config ?? study.model, traces = names("traces");
  const framework = typeof study.framework === "object" ? study.framework.preset : study.framework;
  return [
    chosen("Model", model, (to, text) => { if (text !== kOwn) to.model = own.includes(text) ? { hf_config: text } : text; },
      [...own.filter((name) => files.get(name).kind === "config"), ...names("models")]),
    chosen("Documents", study.trace?.file ?? study.trace?.distribution, (to, text) => {
      if (text !== kOwn) to.trace = lists.traces.some(({ name, kind }) => name === text && kind === "distribution") ? { distribution: text } : { file: text, repeat: true };
    }, [...own.filter((name) => files.get(name).kind === "lengths"), ...traces]),
    chosen("GPU", at(study, "cluster.profile"), (to, text) => { if (text !== kOwn) put(to, "cluster.profile", text); }, names("profiles")),
    ["GPUs", gpusOf(study), (to, text) => setGpus(to, valueOf(text)), null],
    key("NIC of one GPU, GB/s", "cluster.network.nic_GBps"),
    key("Window, tokens", "batch.context_window"),
    key("Windows per step", "batch.sequences_per_step"),
    key("Steps", "batch.steps"),
    chosen("Framework", framework ?? "megatron", (to, text) => { if (text !== kOwn) to.framework = text; }, names("frameworks")),
  ];
}

const layoutFields = (study) => [["TP", "tensor"], ["CP", "context"], ["PP", "pipeline"], ["Interleaving", "virtual_pipeline"], ["EP", "expert"], ["ZeRO", "zero"], ["Recompute", "recompute"]]
  .map(([label, axis]) => [label, at(study, `parallel.${axis}`) ?? "", (to, text) => put(to, `parallel.${axis}`, valueOf(text)), null]);

function field([label, value, act, names], changed) {
  const take = (event) => changed((study) => act(study, event.target.value));
  const input = names ? el("select", { onchange: take }, ...names.map((name) => el("option", { value: name, selected: name === value }, name)))
    : el("input", { type: "text", value: typeof value === "object" ? JSON.stringify(value) : value, onchange: take, autocomplete: "off", spellcheck: "false" });
  return el("label", {}, label, input);
}

// A box for each policy: those that the study has had, with their options, then the program's others.
function policyBoxes(study, offered, lists, changed) {
  const has = (label) => study.policies.some((entry) => labelOf(entry) === label);
  for (const entry of study.policies) offered.set(labelOf(entry), entry);
  const box = (label, entry) => el("label", { class: "box" }, el("input", {
    type: "checkbox", checked: has(label), onchange: (event) => changed((to) => {
      to.policies = event.target.checked ? [...to.policies, entry] : to.policies.filter((other) => labelOf(other) !== label);
      if (!to.policies.some((other) => labelOf(other) === to.baseline)) delete to.baseline;
    }),
  }), label);
  const others = lists.policies.filter(({ name, kind }) => ["packing", "preset"].includes(kind) && !offered.has(name));
  return [
    el("fieldset", {}, el("legend", {}, "Policies"), ...[...offered].map(([label, entry]) => box(label, entry))),
    el("details", { id: "more-policies" }, el("summary", {}, `${others.length} more policies`), ...others.map(({ name }) => box(name, name))),
  ];
}

// Keys that a sweep can move, and values that are near this study's.
const sweeps = [
  ["none", "", ""],
  ["Network card, GB/s", "cluster.network.nic_GBps", "12.5,25,50,100"],
  ["CP degree", "parallel.context", "1,2,4,8"],
  ["Window", "batch.context_window", "32K,64K,128K"],
  ["Longest document", "batch.max_length", "8K,32K,128K"],
  ["Windows per step", "batch.sequences_per_step", "8,16,32,64"],
  ["GPU", "cluster.profile", "a100-sxm,h100-sxm,b200-sxm"],
];

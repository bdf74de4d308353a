// Where every figure comes from, and what papers printed for the same figure.

function publishedSection() {
  if (!data.published || !data.published.length) return;
  const parent = section("published", "Next to published figures", "Shown next to what is simulated here, and never used by it.");
  const figure = (value, metric) => (metric === "peak_memory_bytes" ? gib(value) : Math.abs(value) >= 1000 ? grouped(value) : String(+value.toPrecision(4)));
  const text = (value, metric) => (isNumber(value) ? figure(value, metric) : value === null ? "–" : value);
  const name = (metric) => (metric === "peak_memory_bytes" ? "peak memory GiB" : metric.replaceAll("_", " "));
  const difference = (row) => (isNumber(row.simulated) && isNumber(row.published) && row.published !== 0
    ? ((row.simulated / row.published - 1) * 100).toFixed(1) + " %" : "");
  parent.append(table([["policy", true], ["figure", true], ["simulated", false], ["published", false], ["difference", false], ["source", true]],
    data.published.map((row) => [row.label, name(row.metric) + (row.against ? ` over ${row.against}` : ""), text(row.simulated, row.metric), text(row.published, row.metric), difference(row), row.source])));
}

// Folds long lists of sources away behind their first words.
function folded(text) {
  if (text.length <= 160) return text;
  const space = text.lastIndexOf(" ", 110);
  return el("details", {}, el("summary", {}, text.slice(0, space > 0 ? space : 110) + " …"), text);
}

function provenanceSection(study) {
  const parent = section("provenance", "Where the figures come from");
  const kind = (name) => (name ? el("span", { class: "kind" }, name) : "");
  if (data.sources && data.sources.length)
    parent.append(table([["input", true], ["here", true], ["kind", true], ["source", true]],
      data.sources.map((source) => [source.what, source.value, kind(source.kind), folded(source.from)])));
  const beyond = study.policies.filter((p) => p.provenance && (p.provenance.beyond_samples > 0 || p.provenance.on_derived_tables > 0));
  if (beyond.length)
    parent.append(el("p", { class: "note" }, "Predictions beyond the profile’s samples, or on tables derived from another machine’s, of all: " +
      beyond.map((p) => `${p.label} ${grouped(p.provenance.beyond_samples)} and ${grouped(p.provenance.on_derived_tables)} of ${grouped(p.provenance.predictions)}`).join("; ") + "."));
  if (data.version) parent.append(el("p", { class: "note" }, `equipoise ${data.version}`));
}

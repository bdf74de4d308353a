// The parts of each kind of page, from the verdict down.
let colourOf = () => "var(--base)";
const rowOf = (label) => data.rows.find((row) => row.label === label);

function contents() {
  const links = [...report.querySelectorAll("section[id]")].filter((s) => s.querySelector("h2"))
    .map((s) => el("a", { href: "#" + s.id }, s.querySelector("h2").textContent));
  document.getElementById("verdict").append(el("nav", { "aria-label": "Contents" }, ...links));
}

function studyPage() {
  const study = data.summary;
  colourOf = colourer(study.policies.map((policy) => policy.label), study.baseline);
  throughputSection(study);
  lossesSection(study);
  imbalanceSection();
  timelineSection(study);
  lengthsSection("Documents as policies get them: one that is cut at a window border counts as its pieces. Pairs are causal, n (n + 1) / 2. The first bin holds all that are shorter.");
  memorySection(study);
  pathSection();
  gpusSection(study);
  delaySection(study);
  notesSection(study.policies.map((p) => [p.label, beyondOf(p)]), notesIn(study.study.notes, study.policies));
  publishedSection();
  provenanceSection(study);
  contents();
}

// On paper nothing can be opened, so that all of it is.
let openedToPrint = [];
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("paper");
  openedToPrint.push(...document.querySelectorAll("details:not([open])"));
  for (const one of openedToPrint) one.open = true;
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("paper");
  for (const one of openedToPrint) one.open = false;
  openedToPrint = [];
});

setUpTheme();
({ study: studyPage, lengths: () => lengthsSection("Pairs are causal, n (n + 1) / 2. The first bin holds all that are shorter."), sweep: sweepPage, tune: tunePage, validation: validationPage, comparison: comparisonPage })[data.kind]();
keepOptionsWhole(report);
document.documentElement.dataset.ready = "true";

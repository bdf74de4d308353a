// What every part of the page uses: data, elements, colours, the tooltip, and charts that follow their width.
const data = JSON.parse(document.getElementById("data").textContent);
const report = document.getElementById("report");
const hasCharts = typeof d3 !== "undefined";

// Makes an element whose children are nodes or text, so that no name is ever read as HTML.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const whole = (value) => value.toFixed(0);
const grouped = (value) => Math.round(value).toLocaleString("en-US");
const percent = (share, digits = 1) => (100 * share).toFixed(digits) + " %";
const gib = (bytes) => (bytes / 2 ** 30).toFixed(1);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const largest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);  // for any number of values
const fixedOr = (value, digits, suffix = "") => (isNumber(value) ? value.toFixed(digits) + suffix : "–");

function seconds(value) {
  if (!isNumber(value)) return "–";
  if (value >= 1) return value.toFixed(2) + " s";
  return value >= 1e-3 ? (value * 1e3).toFixed(1) + " ms" : (value * 1e6).toFixed(0) + " µs";
}

function tokens(value) {
  if (value >= 2 ** 20 && value % 2 ** 20 === 0) return value / 2 ** 20 + "M";
  return value >= 1024 && value % 1024 === 0 ? value / 1024 + "K" : String(value);
}

// A policy has the same colour in every chart; the baseline is grey.
function colourer(labels, baseline) {
  const others = labels.filter((label) => label !== baseline);
  return (label) => (label === baseline ? "var(--base)" : `var(--p${Math.max(0, others.indexOf(label)) % 8})`);
}

// For scripts that need the colour itself (canvas).
function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function section(id, title, ...lead) {
  const node = el("section", { id }, el("h2", {}, title));
  for (const text of lead) if (text) node.append(el("p", {}, text));
  report.append(node);
  return node;
}

// Texts of the page outside figures, data and controls.
function textsOf(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) if (!walker.currentNode.parentNode.closest("svg, script, noscript, select, button")) found.push(walker.currentNode);
  return found;
}

// Keeps an option of the command line on one line.
function keepOptionsWhole(root) {
  for (const node of textsOf(root)) {
    const parts = node.data.split(/(?<![\w-])(--[a-z]+(?:-[a-z]+)*)(?![\w-])/);
    if (parts.length > 1) node.replaceWith(...parts.filter(Boolean).map((part) => (part.startsWith("--") && part.length < 30 ? el("code", { class: "option" }, part) : part)));
  }
}

// The share of a row's kernel time beyond the profile's samples; null if it has none.
const beyondOf = (row) => (row.provenance && row.provenance.predictions > 0 ? row.provenance.beyond_samples_share : null);
const shareText = (share) => (share > 0 && share < 0.01 ? "less than 1 %" : percent(share, 0));

// The texts of notes. An earlier version's are plain texts, and a saved result may hold anything there.
const noteTexts = (list) => (Array.isArray(list) ? list.map((note) => note?.text ?? note).filter((note) => typeof note === "string") : []);

// The notes of a study and of its rows, each once and with its row's name.
function notesIn(notes, rows) {
  return [...new Set([...noteTexts(notes), ...rows.filter(Boolean).flatMap((row) => noteTexts(row.notes).map((note) => (note.startsWith(row.label) ? note : `${row.label}: ${note}`)))])];
}

// The notes of several results, given as [[whose, notes]]. A note that all have is listed once and alone, any
// other once with its owner.
function notesOf(sides) {
  return [...new Set(sides.flatMap(([, notes]) => notes))].map((note) => {
    const whose = sides.filter(([, notes]) => notes.includes(note)).map(([name]) => name);
    return whose.length === sides.length ? note : `${whose.join(", ")}: ${note}`;
  });
}

// What qualifies a page's figures, below them: further lines of the verdict, the shares beyond the profile's samples,
// [[what, share]], and notes.
function notesSection(shares, notes) {
  const more = [...document.querySelectorAll("#verdict .more")], known = shares.filter(([, share]) => share !== null);
  const beyond = known.some(([, share]) => share > 0);
  if (!more.length && !beyond && !notes.length) return;
  const parent = section("notes", "Notes");
  parent.append(...more);
  if (beyond)
    parent.append(el("p", { class: "note beyond" }, "Kernel time beyond the profile’s samples: " + known.map(([what, share]) => `${what} ${shareText(share)}`).join(", ") + "."));
  if (notes.length)
    parent.append(el("details", { class: "notes", open: notes.length < 4 }, el("summary", {}, notes.length === 1 ? "1 note" : `${notes.length} notes`),
      el("ul", { class: "setup" }, ...notes.map((note) => el("li", {}, note)))));
}

// What an axis below a chart counts, at its right end.
function axisTitle(svg, width, y, text) {
  svg.append("text").attr("class", "soft name").attr("x", width - 8).attr("y", y).attr("text-anchor", "end").text(text).call(fitText, width - 16);
}

function legend(items) {
  return el("ul", { class: "legend" }, ...items.map(([name, colour]) =>
    el("li", {}, el("i", { style: `background:${colour}`, "aria-hidden": "true" }), name)));
}

function select(label, options, chosen, act) {
  const input = el("select", { onchange: () => act(input.value) },
    ...options.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text)));
  return el("label", {}, label, input);
}

// Renews controls without taking the keyboard's focus from the one that has it.
function renew(parent, ...controls) {
  const kinds = "select, button, input";
  const chosen = [...parent.querySelectorAll(kinds)].indexOf(document.activeElement);
  parent.replaceChildren(...controls);
  if (chosen >= 0 && parent.querySelectorAll(kinds)[chosen]) parent.querySelectorAll(kinds)[chosen].focus();
}

const fileName = (text) => `${document.title} ${text}`.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80);

function save(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const tip = document.getElementById("tip");

// Shows lines of text at a place of the window; the first line is bold.
function showTip(lines, x, y) {
  tip.replaceChildren(el("b", {}, lines[0]), ...lines.slice(1).filter(Boolean).map((line) => el("span", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(4, x + 14), innerWidth - box.width - 4);
  const top = y + 18 + box.height < innerHeight ? y + 18 : Math.max(4, y - box.height - 10);
  tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

function hideTip() {
  tip.hidden = true;
}

// Shows the lines of `lines(datum)` while the pointer is over a mark. D3 6 and later pass the event to a
// listener first, D3 5 keeps it in d3.event.
function tooltips(marks, lines, walked = true) {
  marks.on("mousemove", (first, second) => {
    const [event, datum] = first instanceof Event ? [first, second] : [d3.event, first];
    showTip(lines(datum), event.clientX, event.clientY);
  }).on("mouseleave", hideTip);
  const host = marks.empty() || !walked ? null : marks.node().closest(".chart");
  if (host) marks.each(function (datum) { (host.marks = host.marks || []).push([this, () => lines(datum)]); });
}

// Does the same by keyboard: arrow keys go from mark to mark of the figure that has the focus.
function walkMarks(host, event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step || !host.marks || !host.marks.length) return;
  event.preventDefault();
  host.chosen = host.chosen === undefined ? 0 : (host.chosen + step + host.marks.length) % host.marks.length;
  const [mark, lines] = host.marks[host.chosen];
  for (const [other] of host.marks) other.classList.toggle("chosen", other === mark);
  const box = mark.getBoundingClientRect();
  showTip(lines(), box.left + box.width / 2, Math.min(box.bottom, innerHeight - 40));
}

const drawn = [];

// Saves a figure as a file: SVG with the colours that it has here, or PNG of what is drawn on a canvas.
function saveFigure(host, name) {
  const canvas = host.querySelector("canvas");
  if (canvas) return canvas.toBlob((blob) => save(name + ".png", blob));
  const drawing = host.querySelector("svg"), copy = drawing.cloneNode(true);
  const originals = [drawing, ...drawing.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(originals[i]);
    for (const key of ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "font-weight", "text-anchor", "display"])
      node.style.setProperty(key, style.getPropertyValue(key));
    node.removeAttribute("class");
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.removeAttribute("aria-hidden");
  copy.style.background = cssColour("--paper");
  save(name + ".svg", new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
}

// Adds a chart to `parent` and redraws it when its width or the theme changes: draw(host, width) fills an
// empty element. A screen reader says `title`, unless what is drawn has an aria-label of its own. Below it
// are buttons that save it. `place` holds the chart itself if that is inside something that scrolls.
function chart(parent, title, draw, place = parent) {
  if (!hasCharts) return null;
  const host = el("div", { class: "chart", role: "img", "aria-label": title });
  const name = () => host.getAttribute("aria-label").split(/[:,]/)[0];
  const kind = el("button", { type: "button", onclick: () => saveFigure(host, fileName(name())) }, "SVG");
  place.append(host);
  parent.append(el("div", { class: "tools" }, kind));
  host.addEventListener("keydown", (event) => walkMarks(host, event));
  host.addEventListener("blur", hideTip);
  let width = 0;
  const again = () => {
    width = host.clientWidth;
    if (width < 1) return;
    host.replaceChildren();
    delete host.marks;
    delete host.chosen;
    draw(host, width);
    if (host.marks) host.tabIndex = 0;
    else host.removeAttribute("tabindex");
    if (host.marks) host.setAttribute("aria-description", "Arrow keys go through its marks.");
    else host.removeAttribute("aria-description");
    const drawing = host.querySelector("svg, canvas");
    kind.hidden = !drawing;
    kind.textContent = drawing && drawing.localName === "canvas" ? "PNG" : "SVG";
    kind.setAttribute("aria-label", `Save as ${kind.textContent}: ${name()}`);
  };
  new ResizeObserver(() => {
    if (host.clientWidth !== width) requestAnimationFrame(again);
  }).observe(host);
  drawn.push(again);
  again();
  return again;
}

function svgIn(host, width, height) {
  return d3.select(host).append("svg").attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`)
    .attr("aria-hidden", "true");
}

// Cuts a text to a width in pixels and keeps endOf(datum) at its end.
function fitText(selection, width, endOf = () => "") {
  selection.each(function (datum) {
    const full = this.textContent, end = endOf(datum), name = full.slice(0, full.length - end.length);
    let text = name;
    while (text.length > 1 && this.getComputedTextLength() > width) {
      text = text.slice(0, -1);
      this.textContent = text + "…" + end;
    }
    if (text !== name) d3.select(this).append("title").text(full);
  });
}

// Light or dark, as the system has it unless the reader chooses.
function setUpTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let own = null;
  const show = () => {
    const theme = own || (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", theme === "dark" ? "Use light colours" : "Use dark colours");
    for (const again of drawn) again();
  };
  dark.addEventListener("change", show);
  button.addEventListener("click", () => {
    own = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    show();
  });
  button.hidden = false;
  show();
}

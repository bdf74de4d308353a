// Tables with the figures of a chart.

// `columns` has [title, is text, or its class]; rows hold texts or nodes, and the first cell is the row's
// name. A screen reader says `of` before the titles.
function table(columns, rows, of = "") {
  const classOf = (kind) => (kind === true ? "text" : kind || null);
  const cell = (value, index) => el(index === 0 ? "th" : "td",
    { scope: index === 0 ? "row" : null, class: classOf(columns[index][1]) }, value);
  const body = el("table", {},
    el("thead", {}, el("tr", {}, ...columns.map(([title, isText]) =>
      el("th", { scope: "col", class: classOf(isText) }, title)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell)))));
  return el("div", {}, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": (of ? `${of}: ` : "") + columns.map((c) => c[0]).join(", ") }, body),
    el("div", { class: "tools" }, csvButton(body, columns.map((c) => c[0]).slice(0, 2).join(" "))));
}

// The same table, folded away behind a chart. It belongs to the last heading above it.
function behind(parent, columns, rows, title = "Figures", of = [...parent.querySelectorAll(":scope > h2, :scope > h3")].pop().textContent) {
  const node = el("details", { open: !hasCharts }, el("summary", {}, title), table(columns, rows, of));
  parent.append(node);
  return node;
}

// The visible rows as CSV, with numbers without thousands' commas.
function csvOf(body) {
  const cell = (node) => {
    const text = node.textContent.trim();
    const plain = /^\d{1,3}(,\d{3})+$/.test(text) ? text.replaceAll(",", "") : text;
    return /[",\n]/.test(plain) ? '"' + plain.replaceAll('"', '""') + '"' : plain;
  };
  return [...body.rows].filter((row) => !row.hidden).map((row) => [...row.cells].map(cell).join(",") + "\n").join("");
}

function csvButton(body, title) {
  return el("button", { type: "button", "aria-label": `Save as CSV: ${title}`,
    onclick: () => save(fileName(title) + ".csv", new Blob([csvOf(body)], { type: "text/csv" })) }, "CSV");
}

// A wide table of the page: in a narrow window a row is a card, whose cells say their columns (page.css).
function makeCards(body) {
  const titles = [...body.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const row of body.tBodies[0].rows) [...row.cells].forEach((cell, i) => { cell.dataset.title = titles[i]; });
  body.classList.add("cards");
}

// What a cell is sorted by: its number if it begins with one (4K is 4096, 12 ms 0.012), else its text.
function sortKey(text) {
  const plain = text.trim().replaceAll(",", "");
  const [first, unit] = plain.split(/\s/);
  const size = sizeOf(first.replace(/x$/, '')) * ({ns: 1e-9, 'µs': 1e-6, us: 1e-6, ms: 1e-3}[unit] ?? 1);
  return plain === "–" ? -Infinity : Number.isNaN(size) ? plain : size;
}

// Turns titles into buttons that sort the rows: largest number or first text first, then reversed.
function makeSortable(body) {
  const titles = [...body.tHead.rows[0].cells];
  titles.forEach((title, column) => {
    const act = () => {
      const rows = [...body.tBodies[0].rows];
      const keys = new Map(rows.map((row) => [row, sortKey(row.cells[column].textContent)]));
      const first = rows.some((row) => typeof keys.get(row) === "number" && keys.get(row) > -Infinity) ? "descending" : "ascending";
      const order = title.getAttribute("aria-sort") === first ? (first === "ascending" ? "descending" : "ascending") : first;
      const less = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
      rows.sort((a, b) => (order === "ascending" ? 1 : -1) * less(keys.get(a), keys.get(b)));
      body.tBodies[0].append(...rows);
      for (const other of titles) other.removeAttribute("aria-sort");
      title.setAttribute("aria-sort", order);
    };
    title.replaceChildren(el("button", { type: "button", class: "sort", onclick: act }, title.textContent));
  });
}

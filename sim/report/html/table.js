// Tables: the figures behind a chart.

// `columns`: [title, is text]; rows of texts or nodes, the first cell the row's name.
function table(columns, rows) {
  const cell = (value, index) => el(index === 0 ? "th" : "td",
    { scope: index === 0 ? "row" : null, class: columns[index][1] ? "text" : null }, value);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": columns.map((c) => c[0]).join(", ") },
    el("table", {},
      el("thead", {}, el("tr", {}, ...columns.map(([title, isText]) =>
        el("th", { scope: "col", class: isText ? "text" : null }, title)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell))))));
}

// The same, folded away where there is a chart to look at.
function behind(parent, columns, rows, title = "Figures") {
  const node = el("details", { open: !hasCharts }, el("summary", {}, title), table(columns, rows));
  parent.append(node);
  return node;
}

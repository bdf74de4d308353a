// Document lengths and the work that they cause.

// Joins the bins below the first percentile of documents into one, since few documents are in them.
function fromFirstPercentile(all) {
  const documents = all.reduce((sum, bin) => sum + bin.documents, 0);
  let first = 0, below = 0;
  while (first + 1 < all.length && below + all[first].documents <= documents / 100) below += all[first++].documents;
  if (first === 0) return all;
  const sum = (key) => all.slice(0, first + 1).reduce((total, bin) => total + bin[key], 0);
  return [{ ...all[first], begin: all[0].begin, shortest: true, documents: sum("documents"), tokens: sum("tokens"), causal_pairs: sum("causal_pairs") }, ...all.slice(first + 1)];
}

function lengthsSection(note) {
  const bins = fromFirstPercentile(data.lengths || []);
  if (!bins.length) return;
  const total = (key) => bins.reduce((sum, bin) => sum + bin[key], 0);
  const series = [["documents", "documents", "var(--s1)"], ["tokens", "tokens", "var(--s3)"], ["causal_pairs", "attention (query-key pairs)", "var(--p1)"]];
  const sums = Object.fromEntries(series.map(([key]) => [key, total(key)]));
  const share = (bin, key) => bin[key] / sums[key];
  // Goes down from the longest bin until half of the attention is included.
  let from = bins.length, pairs = 0;
  while (from > 0 && pairs < 0.5) pairs += share(bins[--from], "causal_pairs");
  const of = (key) => bins.slice(from).reduce((sum, bin) => sum + share(bin, key), 0);
  const name = (bin) => (bin.shortest ? "to " + tokens(bin.end) : tokens(bin.begin));
  const parent = section("lengths", "Document lengths and the work they cause",
    `Documents of ${tokens(bins[from].begin)} tokens and more are ${percent(of("documents"))} of all; they hold ${percent(of("tokens"))} of the tokens and cause ${percent(of("causal_pairs"))} of the attention.`);
  parent.append(legend(series.map(([, title, colour]) => [title, colour])));
  chart(parent, "Shares of documents, tokens and attention by document length", (host, width) => {
    const height = 240, bottom = 42, left = 38;
    const svg = svgIn(host, width, height);
    const x = d3.scaleBand().domain(d3.range(bins.length)).range([left, width - 4]).paddingInner(0.22);
    const most = Math.max(...bins.flatMap((bin) => series.map(([key]) => share(bin, key))));
    const y = d3.scaleLinear().domain([0, most]).nice(5).range([height - bottom, 8]);
    svg.append("g").attr("class", "axis").attr("transform", `translate(${left},0)`)
      .call(d3.axisLeft(y).ticks(5).tickFormat((v) => percent(v, 0)).tickSize(-(width - left - 4)));
    const every = Math.ceil(bins.length / (width / 44));
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - bottom})`)
      .call(d3.axisBottom(x).tickFormat((i) => (i % every === 0 ? name(bins[i]) : "")).tickSize(0).tickPadding(8));
    svg.append("text").attr("class", "soft").attr("x", width - 4).attr("y", height - 6).attr("text-anchor", "end")
      .text("document length in tokens, bins of a factor 2");
    const wide = x.bandwidth() / series.length;
    series.forEach(([key, , colour], k) => {
      svg.selectAll(`rect.s${k}`).data(bins).join("rect").attr("class", `s${k}`).attr("x", (_, i) => x(i) + k * wide)
        .attr("width", Math.max(1, wide - 1)).attr("y", (bin) => y(share(bin, key))).attr("height", (bin) => y(0) - y(share(bin, key)))
        .style("fill", colour);
    });
    const areas = svg.selectAll("rect.area").data(bins).join("rect").attr("class", "area").attr("x", (_, i) => x(i)).attr("y", 8)
      .attr("width", x.step()).attr("height", height - bottom - 8).style("fill", "transparent");
    tooltips(areas, (bin) => [`${tokens(bin.begin)} to ${tokens(bin.end)} tokens`,
      `${grouped(bin.documents)} documents, ${percent(share(bin, "documents"))}`, `${percent(share(bin, "tokens"))} of tokens`,
      `${percent(share(bin, "causal_pairs"))} of attention`]);
  });
  behind(parent, [["length from", true], ["documents", false], ["tokens", false], ["documents %", false], ["tokens %", false], ["attention %", false]],
    bins.map((bin) => [name(bin), grouped(bin.documents), grouped(bin.tokens), ...series.map(([key]) => (100 * share(bin, key)).toFixed(2))]));
  parent.append(el("p", { class: "note" }, note));
}

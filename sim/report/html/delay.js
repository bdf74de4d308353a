// How long tokens wait: shares of all tokens by the number of steps that a policy delays them.

const kDelays = [[0, 0, "at once"], [1, 1, "1 step"], [2, 3, "2–3 steps"], [4, 7, "4–7 steps"], [8, Infinity, "8 and more"]];

function delaySection(study) {
  const rows = data.rows.filter((row) => row.tokens_by_delay.length);
  const whole = study.policies.filter((policy, i) => policy.status === "ok" && !data.rows[i].tokens_by_delay.length).map((p) => p.label);
  if (!rows.length) return;
  const held = rows.some((row) => row.tokens_by_delay.length > 1);
  const parent = section("delay", "How long tokens wait",
    held ? "A policy that holds documents back to pack them better trains on them later, and in another order. Steps between a token’s arrival and its training."
      : "No policy that was planned here holds documents back: every token trains in the step that it arrives in, or earlier.",
    whole.length ? `Without a delay, since they see all documents first: ${whole.join(", ")}.` : "");
  if (!held) return;
  const shares = rows.map((row) => {
    const all = row.tokens_by_delay.reduce((sum, n) => sum + n, 0);
    const parts = kDelays.map(([first, last, name]) => ({ name, share: row.tokens_by_delay.slice(first, last + 1).reduce((sum, n) => sum + n, 0) / all }));
    const metrics = study.policies.find((policy) => policy.label === row.label).metrics;
    const mean = metrics.token_delay_mean;
    const emptied = metrics.queue_emptied === false ? ", a queue never emptied" : "";
    return { label: row.label, right: `mean ${fixedOr(mean, 2)}, longest ${row.tokens_by_delay.length - 1}${emptied}`, mean,
      parts: parts.filter((p) => p.share > 0).map((p) => ({ ...p, text: percent(p.share) + " of tokens" })) };
  });
  const colour = (name) => `var(--s${kDelays.findIndex((d) => d[2] === name)})`;
  parent.append(legend(kDelays.map((d) => [d[2], colour(d[2])])));
  stackedRows(parent, "Tokens by delay", shares, colour);
  behind(parent, [["policy", true], ["mean steps", false], ["longest", false], ...kDelays.map((d) => [d[2] + " %", false])],
    shares.map((row, i) => [row.label, fixedOr(row.mean, 3), String(rows[i].tokens_by_delay.length - 1),
      ...kDelays.map((d) => fixedOr(100 * (row.parts.find((p) => p.name === d[2]) || { share: 0 }).share, 2))]));
}

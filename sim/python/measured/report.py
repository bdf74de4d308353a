"""How far predicted steps are from measured ones: errors, the choice of a layout, and what a policy gains."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import correlation, mean, median



@dataclass
class Predicted:
    run: object
    seconds: list  # by step

    @property
    def errors(self):
        return [ours / step.seconds - 1 for ours, step in zip(self.seconds, self.run.steps)]

    @property
    def context(self):
        return self.run.study["parallel"].get("context", 1)


def summary(errors):
    """The number of errors (simulated / measured - 1), and their mean absolute, mean and worst in %."""
    worst = max(errors, key=abs)
    return {
        "steps": len(errors),
        "mean_abs": 100 * mean(map(abs, errors)),
        "mean": 100 * mean(errors),
        "worst": 100 * worst,
    }


def errors_by(results, key):
    groups = defaultdict(list)
    for result in results:
        groups[key(result)] += result.errors
    return {name: summary(errors) for name, errors in sorted(groups.items())}


def within_runs(results):
    """Correlations [r] of predicted and measured steps within each run whose documents change."""
    found = []
    for result in results:
        measured = [step.seconds for step in result.run.steps]
        if len(measured) > 2 and len(set(measured)) > 1 and len(set(result.seconds)) > 1:
            found.append(correlation(measured, result.seconds))
    return found


def layouts(results):
    """(group, policy) -> {CP degree: (measured, predicted)}: mean seconds of a step, of the steps that all have."""
    steps = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for result in results:
        for number, (step, ours) in enumerate(zip(result.run.steps, result.seconds)):
            of_layout = steps[(result.run.group, result.run.policy)][result.context]
            of_layout[number].append((step.seconds, ours))
    found = {}
    for name, of_context in sorted(steps.items()):
        shared = set.intersection(*(set(numbers) for numbers in of_context.values()))
        if not shared:
            continue
        found[name] = {
            context: tuple(mean(mean(pair[k] for pair in numbers[n]) for n in shared) for k in (0, 1))
            for context, numbers in sorted(of_context.items())
        }
    return found


def choices(found):
    """Groups with a choice of CP degrees: [(name, best as measured, best as predicted, regret)]."""
    rows = []
    for name, times in found.items():
        if len(times) < 2:
            continue
        best = min(times, key=lambda context: times[context][0])
        chosen = min(times, key=lambda context: times[context][1])
        rows.append((name, best, chosen, times[chosen][0] / times[best][0] - 1))
    return rows


def gains(found, better="per-document", worse="per-sequence"):
    """[(group, CP, measured, predicted)]: how much faster one sharding is than the other, same layout."""
    rows = []
    for (group, policy), times in found.items():
        other = found.get((group, worse), {})
        if policy != better:
            continue
        for context, (measured, predicted) in times.items():
            if context in other:
                rows.append((group, context, other[context][0] / measured, other[context][1] / predicted))
    return rows


def away_gains(results, better="disaggregated", worse="per-document"):
    """[(group, steps, measured, predicted)]: how much faster `better` is than the best CP degree of `worse`, on the
    samples that all of them ran."""
    times = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for result in results:
        for step, ours in zip(result.run.steps, result.seconds):
            of_layout = times[result.run.group][(result.run.policy, result.context)]
            of_layout[step.sample].append((step.seconds, ours))
    rows = []
    for group, of_layout in sorted(times.items()):
        wanted = {name: samples for name, samples in of_layout.items() if name[0] in (better, worse)}
        shared = set.intersection(*(set(samples) for samples in wanted.values())) if wanted else set()
        shared -= {""}  # for samples without a name
        if len({policy for policy, _ in wanted}) < 2 or not shared:
            continue
        best = {policy: [min(mean(mean(pair[k] for pair in samples[s]) for s in shared)
                             for (p, _), samples in wanted.items() if p == policy) for k in (0, 1)]
                for policy in (better, worse)}
        rows.append((group, len(shared), *(w / b for w, b in zip(best[worse], best[better]))))
    return rows


def points(results):
    """Measured and predicted seconds of every step by model and policy, as the figure shows them."""
    found = defaultdict(list)
    for result in results:
        pairs = [[round(step.seconds, 4), round(ours, 4)] for step, ours in zip(result.run.steps, result.seconds)]
        found[f"{result.run.study['model']['name']}, {result.run.policy}"] += pairs
    return found


def text(results, version):
    """The report as Markdown."""
    lines = [f"Predicted by {version}; error is simulated / measured - 1, in %.", ""]

    def table(title, groups):
        lines.extend([f"| {title} | steps | mean abs | mean | worst |", "| --- | ---: | ---: | ---: | ---: |"])
        for name, s in groups.items():
            lines.append(
                f"| {name} | {s['steps']} | {s['mean_abs']:.1f} | {s['mean']:+.1f} | {s['worst']:+.1f} |"
            )
        lines.append("")

    away = [result for result in results if result.run.policy == "disaggregated"]
    own = [result for result in results if result.run.policy != "disaggregated"]
    if own:
        everything = [error for result in own for error in result.errors]
        table("all", {"all steps": summary(everything)} | length_classes(own))
        table("model and window", errors_by(own, lambda r: r.run.group))
    if away:
        table("disaggregated", errors_by(away, lambda r: r.run.group))
    table("sharding and CP", errors_by(results, lambda r: f"{r.run.policy}, CP {r.context:2}"))
    r = within_runs(results)
    if r:
        lines += [
            f"Steps within a run: correlation {median(r):.3f} at the median of {len(r)} runs, {min(r):.3f} at least.",
            "",
        ]
    found = layouts(results)
    chosen = choices(found)
    if chosen:
        lines += ["| group | best CP measured | predicted | regret % |", "| --- | ---: | ---: | ---: |"]
        lines += [
            f"| {group}, {policy} | {best} | {ours} | {100 * regret:.1f} |"
            for (group, policy), best, ours, regret in chosen
        ]
        right = sum(best == ours for _, best, ours, _ in chosen)
        lines += ["", f"The best CP degree is right in {right} of {len(chosen)} groups.", ""]
    gained = gains(found)
    if gained:
        lines += [
            "| per-document over per-sequence | CP | measured | predicted |",
            "| --- | ---: | ---: | ---: |",
        ]
        lines += [f"| {group} | {context} | {m:.2f} | {p:.2f} |" for group, context, m, p in gained]
        lines.append("")
    gained = away_gains(results)
    if gained:
        lines += ["| disaggregated over the best per-document CP | samples | measured | predicted |"]
        lines += ["| --- | ---: | ---: | ---: |"]
        lines += [f"| {group} | {count} | {m:.2f} | {p:.2f} |" for group, count, m, p in gained]
        lines.append("")
    return "\n".join(lines)


def length_classes(results):
    """Windows of 64K and above, and of 16K and below, where runs say their window."""
    classes = {"windows of 64K and above": [], "windows of 16K and below": []}
    for result in results:
        if result.run.window >= 64 << 10:
            classes["windows of 64K and above"] += result.errors
        elif 0 < result.run.window <= 16 << 10:
            classes["windows of 16K and below"] += result.errors
    return {name: summary(errors) for name, errors in classes.items() if errors}

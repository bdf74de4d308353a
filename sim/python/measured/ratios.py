"""Ratios of two rows of one study, as measured and as predicted: what is left of their errors once what both share cancels."""

from collections import defaultdict
from itertools import combinations
from statistics import mean

SIZES = ("tensor", "context", "pipeline", "data")  # of a layout


def ratio(source, benchmark, framework, policies, measured, predicted):
    """`policies`: of one layout; false: of two. Speeds of the second over the first."""
    return {"source": source, "benchmark": f"{source}, {benchmark}", "framework": framework, "policies": policies,
            "measured": measured, "predicted": predicted}


def of_runs(results, source):
    """Runs of a group by twos, each by its mean seconds of the documents that both ran."""
    groups = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    frameworks = {}
    for result in results:
        parallel = result.run.study["parallel"]
        frameworks[result.run.group] = result.run.study.get("framework", {}).get("preset", "megatron")
        row = (result.run.policy, tuple(parallel.get(size, 1) for size in SIZES))
        for number, (step, ours) in enumerate(zip(result.run.steps, result.seconds)):
            groups[result.run.group][row][step.sample or number].append((step.seconds, ours))
    found = []
    for group, rows in sorted(groups.items()):
        for (one, one_layout), (other, other_layout) in combinations(sorted(rows), 2):
            of_one, of_other = rows[one, one_layout], rows[other, other_layout]
            shared = of_one.keys() & of_other.keys()
            if not shared:
                continue
            speeds = [mean(mean(pair[k] for pair in of_one[s]) for s in shared) / mean(mean(pair[k] for pair in of_other[s]) for s in shared)
                      for k in (0, 1)]
            # Errors of one window differ by CP degree: each is a benchmark.
            same = one_layout == other_layout
            at = f", CP {one_layout[1]}" if same else ""
            found.append(ratio(source, group + at, frameworks[group], same, *speeds))
    return found


def of_figures(figures, values, published):
    """Figures of one setting that a source compares. Where it groups ranks otherwise they are two layouts."""
    ours = {(f.source, f.setting, f.method): found[0] for f, found in zip(figures, values)}
    found = []
    for f in figures:
        if not f.over:
            continue
        printed = [published[f.source][f.setting][method] for method in (f.over, f.method)]
        speeds = [b / a if f.unit != "s" else a / b
                  for a, b in (printed, (ours[f.source, f.setting, f.over], ours[f.source, f.setting, f.method]))]
        found.append(ratio(f.source, f.setting.split(",")[0], "fsdp", f.source != "FlexSP", *speeds))
    return found

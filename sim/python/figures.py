"""Draws the figures of three pages from the pages' own data, with matplotlib.

  python3 -m figures                all of them
  python3 -m figures papers atlas   these

Next to the pages of docs/results: papers.svg of papers/results.json, atlas.svg of atlas/atlas.json, measured-steps.svg of
measured/steps.json.
"""

import argparse
import hashlib
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "docs/results"
# Text stays text, and equal data make equal bytes.
STYLE = {"svg.hashsalt": "equipoise", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def digest(data):
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:24]


def draw(path, paint, data, size):
    """Writes what `paint` draws of the data on one axes; the file's description is the digest of the data."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size)
        paint(figure.subplots(), data)
        figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None, "Description": digest(data)})


def logarithmic(axes, low, high, ticks):
    """Both axes from low to high, with the line where they are equal."""
    for scale, limits, axis in ((axes.set_xscale, axes.set_xlim, axes.xaxis), (axes.set_yscale, axes.set_ylim, axes.yaxis)):
        scale("log")
        limits(low, high)
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.set_aspect("equal")
    axes.plot([low, high], [low, high], color="0.3", linewidth=0.8)


def ratios_of(papers):
    """The counted ratios of papers/results.json but those of exactly one, of which there is no share."""
    return [f for f in papers["figures"] if f["kind"] == "ratio" and not f["unit"] and "now" in f["counted"] and f["published"] != 1]


def paint_ratios(axes, ratios, low=0.8, high=12.0):
    """Published against simulated; headlines are large, with a line from where they are if nothing is chosen."""
    logarithmic(axes, low, high, (1, 1.5, 2, 3, 4, 6, 8, 12))
    published = [1 + i * (high - 1) / 200 for i in range(201)]
    for share in (0.75, 1.33):
        axes.plot(published, [1 + share * (x - 1) for x in published], color="0.6", linewidth=0.8, linestyle="--",
                  label="0.75 and 1.33 of the printed gain" if share < 1 else None)
    for i, paper in enumerate(dict.fromkeys(ratio["paper"] for ratio in ratios)):
        for ratio in (r for r in ratios if r["paper"] == paper and low <= r["published"] <= high and low <= (r["ours"] or 0) <= high):
            x, y, colour = ratio["published"], ratio["ours"], f"C{i}"
            if ratio["headline"] and ratio["unchosen"]:
                axes.plot([x, x], [min(max(end, low), high) for end in (ratio["unchosen"], y)], color=colour, alpha=0.6)
            axes.plot(x, y, "o", color=colour, markersize=7 if ratio["headline"] else 3.5, markerfacecolor="white")
        axes.plot([], [], "o", color=f"C{i}", label=paper)
    axes.plot([], [], color="0.3", alpha=0.6, label="headline: from the fewest choices")
    axes.set_xlabel("published ratio")
    axes.set_ylabel("simulated ratio")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)


def paint_atlas(axes, atlas):
    """A square for each policy and cell: how fast it is compared with the cell's fastest, and its gain over plain."""
    import matplotlib

    cells, policies = atlas["cells"], atlas["policies"]
    shade = [[max(0.5, cell["rows"].get(policy, {}).get("of_fastest", float("nan"))) for cell in cells] for policy in policies]
    colours = matplotlib.colormaps["Blues"].with_extremes(bad="0.85")
    shown = axes.pcolormesh(shade, cmap=colours, vmin=0.5, vmax=1, edgecolors="white", linewidth=1.5)
    for y, policy in enumerate(policies):
        for x, cell in enumerate(cells):
            row = cell["rows"].get(policy, {})
            if "gain" in row:
                axes.text(x + 0.5, y + 0.5, f"{row['gain']:.2f}", ha="center", va="center", fontsize=5.5, color="white" if row["of_fastest"] > 0.8 else "0.2")
    axes.set_xticks([x + 0.5 for x in range(len(cells))], [f"{cell['job'].split(',')[0]}: {cell['trace']}" for cell in cells], rotation=90, fontsize=7)
    axes.set_yticks([y + 0.5 for y in range(len(policies))], policies, fontsize=7)
    axes.xaxis.tick_top()
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(shown, ax=axes, location="bottom", shrink=0.5, aspect=50, pad=0.01)
    bar.set_ticks([0.5, 0.75, 1], labels=["half as fast or slower", "three quarters", "as fast as the cell's fastest"])
    bar.outline.set_visible(False)
    axes.set_xlabel("In a square: speed over plain. Grey: the policy does not run.")


def paint_steps(axes, steps):
    """Measured against predicted seconds, a dot for each step."""
    times = [seconds for pairs in steps.values() for pair in pairs for seconds in pair]
    low, high = min(times) / 1.1, max(times) * 1.1
    logarithmic(axes, low, high, [t for e in range(-3, 4) for t in (1 * 10.0**e, 2 * 10.0**e, 5 * 10.0**e) if low < t < high])
    for share in (0.95, 1.05):
        axes.plot([low, high], [share * low, share * high], color="0.6", linewidth=0.8, linestyle="--", label="5 % off" if share < 1 else None)
    for i, (kind, pairs) in enumerate(sorted(steps.items())):
        axes.plot(*zip(*pairs), "o", color=f"C{i}", markersize=2, markeredgewidth=0, alpha=0.5, label=kind)
    axes.set_xlabel("measured, seconds per step")
    axes.set_ylabel("predicted, seconds per step")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False, markerscale=3)


def draw_papers(papers, path=RESULTS / "papers.svg"):
    draw(path, paint_ratios, ratios_of(papers), (7, 4.6))


def draw_atlas(atlas, path=RESULTS / "atlas.svg"):
    draw(path, paint_atlas, atlas, (10, 11))


def draw_steps(steps, path=RESULTS / "measured-steps.svg"):
    draw(path, paint_steps, steps, (7, 4.6))


def page(name):
    return (RESULTS / name).read_text(encoding="utf-8")


def data(name):
    return json.loads((HERE / name).read_text(encoding="utf-8"))


FIGURES = {
    "papers": lambda: draw_papers(data("papers/results.json")),
    "atlas": lambda: draw_atlas(data("atlas/atlas.json")),
    "measured": lambda: draw_steps(data("measured/steps.json")),
}


def main():
    parser = argparse.ArgumentParser(prog="figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="papers, atlas or measured; all of them by default")
    pages = parser.parse_args().pages or list(FIGURES)
    for page in pages:
        if page not in FIGURES:
            parser.error(f"expected {', '.join(FIGURES)}, found {page}")
    for page in pages:
        FIGURES[page]()


if __name__ == "__main__":
    main()

"""Paper against ours as a scatter plot of all ratios (SVG, written out: no plotting library)."""

from math import log

from .figure import SHARE

SIZE, MARGIN = 420, 48
LOW, HIGH = 0.8, 12.0
GRID = (1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 10, 12)
COLOURS = {"WLB-LLM": "#1f77b4", "ChunkFlow": "#d62728", "HBP": "#2ca02c", "Skrull": "#9467bd"}
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="11">'
)


def place(value):
    """Pixels of a value on either axis; logarithmic."""
    share = (log(value) - log(LOW)) / (log(HIGH) - log(LOW))
    return MARGIN + share * (SIZE - 2 * MARGIN)


def line(x0, y0, x1, y1, style):
    return f'<line x1="{x0:.1f}" y1="{SIZE - y0:.1f}" x2="{x1:.1f}" y2="{SIZE - y1:.1f}" {style}/>'


def svg(figures):
    """Figures that are speed-ups or other ratios without a unit, headlines larger; bands as lines."""
    shown = [
        (paper, f)
        for paper, f in figures
        if f.is_ratio and f.ours and LOW <= f.published <= HIGH and LOW <= f.ours <= HIGH
    ]
    parts = [HEAD.format(w=SIZE + 130, h=SIZE), f'<rect width="{SIZE + 130}" height="{SIZE}" fill="white"/>']
    low, high = place(LOW), place(HIGH)
    parts.append(line(low, low, high, high, 'stroke="#444"'))
    for share in SHARE:
        points = [(published, 1 + share * (published - 1)) for published in GRID]
        inside = [(place(x), SIZE - place(y)) for x, y in points if y <= HIGH]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in inside)
        parts.append(f'<polyline points="{path}" fill="none" stroke="#aaa" stroke-dasharray="4 3"/>')
    for tick in (1, 1.5, 2, 3, 4, 6, 8, 12):
        at = place(tick)
        parts.append(f'<text x="{at:.1f}" y="{SIZE - low + 16:.1f}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{low - 8:.1f}" y="{SIZE - at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<text x="{SIZE / 2:.0f}" y="{SIZE - 8}" text-anchor="middle">published</text>')
    parts.append(
        f'<text x="14" y="{SIZE / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {SIZE / 2:.0f})">simulated</text>'
    )
    for paper, f in shown:
        x, y, colour = place(f.published), place(f.ours), COLOURS[paper]
        if f.headline and f.band and None not in f.band:
            ends = [place(min(max(v, LOW), HIGH)) for v in (min(f.band), max(f.band))]
            parts.append(line(x, ends[0], x, ends[1], f'stroke="{colour}" stroke-width="1.5" opacity="0.6"'))
        fill = colour if f.how == "predicted" else "white"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{SIZE - y:.1f}" r="{5 if f.headline else 2.5}" '
            f'fill="{fill}" stroke="{colour}">'
            f"<title>{escape(paper)}: {escape(f.what)}</title></circle>"
        )
    for i, (paper, colour) in enumerate(COLOURS.items()):
        parts.append(
            f'<circle cx="{SIZE - 20}" cy="{MARGIN + 18 * i}" r="5" fill="{colour}"/>'
            f'<text x="{SIZE - 8}" y="{MARGIN + 4 + 18 * i}">{paper}</text>'
        )
    for i, text in enumerate(
        (
            "large: headlines",
            "line: band",
            "full: predicted",
            "hollow: fitted, or",
            "by construction",
            "dashes: 0.75 and 1.33",
            "of the printed gain",
        )
    ):
        parts.append(f'<text x="{SIZE - 26}" y="{MARGIN + 88 + 15 * i}">{text}</text>')
    return "\n".join(parts + ["</svg>", ""])


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

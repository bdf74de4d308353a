"""Measured against predicted steps as a scatter plot (SVG, written out: no plotting library)."""

from html import escape
from math import ceil, floor, log10

SIZE, MARGIN = 440, 52
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")


def svg(results):
    """One dot a step, logarithmic axes in seconds; dashed: 5 % either way."""
    times = [t for r in results for t in r.seconds + [step.seconds for step in r.run.steps]]
    low, high = floor(4 * log10(min(times))) / 4, ceil(4 * log10(max(times))) / 4

    def place(seconds):
        return MARGIN + (log10(seconds) - low) / (high - low) * (SIZE - 2 * MARGIN)

    def line(x0, y0, x1, y1, style):
        return f'<line x1="{x0:.1f}" y1="{SIZE - y0:.1f}" x2="{x1:.1f}" y2="{SIZE - y1:.1f}" {style}/>'

    first, last = 10**low, 10**high
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE + 190} {SIZE}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{SIZE + 190}" height="{SIZE}" fill="white"/>',
        line(place(first), place(first), place(last), place(last), 'stroke="#444"'),
    ]
    for share in (0.95, 1.05):
        parts.append(
            line(
                place(first / min(1, share)),
                place(first * max(1, share)),
                place(last / max(1, share)),
                place(last * min(1, share)),
                'stroke="#aaa" stroke-dasharray="4 3"',
            )
        )
    tick = [d * 10**e for e in range(floor(low), ceil(high) + 1) for d in (1, 2, 5)]
    for seconds in (t for t in tick if first <= t <= last):
        at = place(seconds)
        parts.append(f'<text x="{at:.1f}" y="{SIZE - MARGIN + 16}" text-anchor="middle">{seconds:g}</text>')
        parts.append(f'<text x="{MARGIN - 8}" y="{SIZE - at + 4:.1f}" text-anchor="end">{seconds:g}</text>')
    parts.append(f'<text x="{SIZE / 2:.0f}" y="{SIZE - 12}" text-anchor="middle">measured, s a step</text>')
    parts.append(
        f'<text x="14" y="{SIZE / 2:.0f}" text-anchor="middle" transform="rotate(-90 14 {SIZE / 2:.0f})">'
        "predicted, s a step</text>"
    )
    kinds = sorted({kind_of(r) for r in results})
    for i, kind in enumerate(kinds):
        colour = COLOURS[i % len(COLOURS)]
        parts.append(f'<circle cx="{SIZE - 20}" cy="{60 + 18 * i}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{SIZE - 10}" y="{64 + 18 * i}">{escape(kind)}</text>')
    for r in results:
        colour = COLOURS[kinds.index(kind_of(r)) % len(COLOURS)]
        for step, seconds in zip(r.run.steps, r.seconds):
            parts.append(
                f'<circle cx="{place(step.seconds):.1f}" cy="{SIZE - place(seconds):.1f}" r="1.6" fill="{colour}" '
                'opacity="0.45"/>'
            )
    return "\n".join(parts) + "\n</svg>\n"


def kind_of(result):
    return f"{result.run.study['model']['name']}, {result.run.policy}"

"""Prints every table and figure that we repeat, paper beside ours, with the deviation and its cause.

  python3 -m papers [--program build/release/bin/equipoise] [--paper wlb_llm] [--out FILE.md]

Exit 1 where a headline has another sign than published, or --check FILE holds something else. What is printed is
Markdown.
"""
import argparse
import sys
from pathlib import Path

from . import chunkflow, hbp, skrull, wlb_llm
from .figure import AIM, HOW, markdown
from .runner import ROOT, Runner

PAPERS = {"wlb_llm": wlb_llm, "chunkflow": chunkflow, "hbp": hbp, "skrull": skrull}


def summary_of(tables):
    figures = [f for table in tables for f in table.figures]
    within = sum(not f.beyond() for f in figures)
    lines = ["## Headlines", "", "| paper | | paper | ours | deviation | |", "| --- | --- | --- | --- | --- | --- |"]
    for table in tables:
        for f in table.figures:
            if f.headline:
                deviation = "-" if f.deviation is None else f"{100 * f.deviation:+.0f} %"
                lines.append(f"| {table.paper} | {f.what} | {f.published:.2f} | {'-' if f.ours is None else f'{f.ours:.2f}'} "
                             f"| {deviation} | {f.how} |")
    lines += ["", f"{within} of {len(figures)} figures are within {100 * AIM:.0f} % of the paper's."]
    lines += ["", *(f"- {how}: {meaning}." for how, meaning in HOW.items()), ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="papers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--paper", choices=PAPERS, help="only this one")
    parser.add_argument("--out", help="also write it to this file")
    parser.add_argument("--check", help="a file that has to hold exactly this")
    args = parser.parse_args()
    run = Runner(args.program)
    tables = []
    for name, paper in PAPERS.items():
        if args.paper in (None, name):
            print(f"{paper.PAPER}", file=sys.stderr)
            tables += paper.tables(run)
    text = summary_of(tables) + "\n## All\n\n" + "\n".join(markdown(table) for table in tables)
    print(text)
    if args.out:
        Path(args.out).write_text(text)
    wrong = [f.what for table in tables for f in table.figures if f.headline and not f.agrees_in_sign]
    for what in wrong:
        print(f"wrong sign: {what}", file=sys.stderr)
    stale = bool(args.check) and Path(args.check).read_text() != text
    if stale:
        print(f"{args.check}: not what comes out today; write it anew with --out", file=sys.stderr)
    return 1 if wrong or stale else 0


if __name__ == "__main__":
    sys.exit(main())

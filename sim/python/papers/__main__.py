"""Prints every table and figure that we repeat, paper beside ours, with the deviation and its cause.

  python3 -m papers [--program build/release/bin/equipoise] [--paper wlb_llm] [--out FILE.md]
  python3 -m papers --write                 # RESULTS.md, its plot, and the README's table and row from it
  python3 -m papers --check                 # exit 1 unless these are what comes out today
  python3 -m papers --check-readme          # only README against RESULTS.md: no simulation

Exit 1 also where a headline has another sign than published. What is printed is Markdown.
"""

import argparse
import sys
from pathlib import Path

from . import chunkflow, hbp, skrull, wlb_llm
from .figure import markdown
from .plot import svg
from .runner import ROOT, Runner
from .seeds import SEEDS, Progress, tables_of
from .summary import BEGIN, END, block_of, figures_of, left_out, row_of, summary_of

PAPERS = {"wlb_llm": wlb_llm, "chunkflow": chunkflow, "hbp": hbp, "skrull": skrull}
HERE = Path(__file__).resolve().parent
RESULTS, PLOT, README = HERE / "RESULTS.md", HERE / "results.svg", ROOT / "README.md"


def with_counts(text, results, path):
    """The README's text with what RESULTS.md counts: the table between the marks, and the row of what was validated."""
    block = block_of(results)
    before, found, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    row = row_of(block)
    lines = before.splitlines(keepends=True)
    places = [i for i, line in enumerate(lines) if line.startswith(row[: row.index("|", 1)])]
    if not found or not end or len(places) != 1:
        sys.exit(f"{path}: expected the marks {BEGIN} and {END} and above them one row of the papers")
    lines[places[0]] = row
    return "".join(lines) + BEGIN + block + END + after


def stale_files(wanted):
    """Complaints about files that hold something else, a line each."""
    return [
        f"{path.relative_to(ROOT)}: not what comes out today; `./run.sh papers --write` writes it anew"
        for path, text in wanted.items()
        if not path.exists() or path.read_text() != text
    ]


def main():
    parser = argparse.ArgumentParser(
        prog="papers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--paper", choices=PAPERS, help="only this one")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="draws of lengths; fewer for a quick look")
    parser.add_argument("--keep", help="folder for what was run: a later call of the same program takes it from there")
    parser.add_argument("--out", help="also write it to this file")
    parser.add_argument(
        "--write", action="store_true", help="write RESULTS.md, its plot and the README's table and row"
    )
    parser.add_argument("--check", action="store_true", help="compare them instead")
    parser.add_argument("--check-readme", action="store_true", help="compare only the README with RESULTS.md")
    args = parser.parse_args()
    if args.check_readme:
        stale = stale_files({README: with_counts(README.read_text(), RESULTS.read_text(), README)})
        print("\n".join(stale), file=sys.stderr)
        return 1 if stale else 0
    if (args.paper or args.seeds != SEEDS) and (args.write or args.check):
        parser.error("--write and --check take all papers and all draws")
    run = Runner(args.program, keep=args.keep)
    tables, missing = [], []
    wanted = [paper for name, paper in PAPERS.items() if args.paper in (None, name)]
    progress = Progress(args.seeds * sum(len(paper.TABLES) for paper in wanted))
    for paper in wanted:
        progress.what = paper.PAPER
        progress.show(paper.PAPER) if sys.stderr.isatty() else print(paper.PAPER, file=sys.stderr)
        tables += tables_of(paper.TABLES, run, args.seeds, progress)
        missing += [(paper.PAPER, *line) for line in paper.LEFT_OUT]
    text = (
        summary_of(tables)
        + "\n"
        + left_out(missing)
        + "\n## All\n\n"
        + "\n".join(markdown(table) for table in tables)
    )
    print(text)
    if args.out:
        Path(args.out).write_text(text)
    figures = figures_of(tables)
    wrong = [f.what for _, f in figures if f.headline and not f.agrees_in_sign]
    for what in wrong:
        print(f"wrong sign: {what}", file=sys.stderr)
    stale = []
    if args.write or args.check:
        wanted = {
            RESULTS: text,
            PLOT: svg(figures),
            README: with_counts(README.read_text(), text, README),
        }
        if args.write:
            for path, content in wanted.items():
                path.write_text(content)
        else:
            stale = stale_files(wanted)
            print("\n".join(stale), file=sys.stderr)
    return 1 if wrong or stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""Prints every table and figure that we repeat, the paper's next to ours, with the deviation and its cause.

  python3 -m papers [--program build/release/bin/equipoise] [--paper wlb_llm] [--out FILE.md]
  python3 -m papers --write                 # docs/results/papers.md, its figure (needs matplotlib), and the table and row of docs/accuracy.md
  python3 -m papers --check                 # exit 1 unless these are what comes out today
  python3 -m papers --check-first           # only the first draw of each table against its digest in the page
  python3 -m papers --check-accuracy        # only docs/accuracy.md against the page of results: no simulation

Exit 1 also where a headline has another sign than published. What is printed is Markdown.
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

from figures import draw_papers

from .figure import markdown
from .runner import ROOT, Runner
from .seeds import SEEDS, Progress, tables_of
from .summary import BEGIN, END, block_of, figures_of, not_here, row_of, summary_of
from .tables import Paper

HERE = Path(__file__).resolve().parent
PAPERS = {name: Paper(HERE / f"{name}.toml") for name in ("wlb_llm", "chunkflow", "hbp", "skrull")}
RESULTS, ACCURACY = ROOT / "docs/results/papers.md", ROOT / "docs/accuracy.md"


def with_counts(text, results, path):
    """The text of docs/accuracy.md with the counts of the page of results in the table between the marks and in its
    row of validations."""
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


def digests_of(tables):
    """A line for each table with its digest and title. The page of results ends with the lines of the first draw."""
    return [f"{hashlib.sha256(markdown(t).encode()).hexdigest()[:16]} {t.paper}: {t.title}" for t in tables]


def with_digests(text, lines):
    return text + "\n<!-- digests of the first draw\n" + "\n".join(lines) + "\n-->\n"


def other_tables(results, lines):
    """A complaint for each table whose first draw differs from the one in the page of results."""
    kept = re.search(r"<!-- digests of the first draw\n(.*)\n-->", results, re.S)
    known = kept.group(1).splitlines() if kept else []
    only = [line for line in lines if line not in known] + [line for line in known if line not in lines]
    names = dict.fromkeys(line.split(" ", 1)[1] for line in only)
    remedy = "the first draw is not what docs/results/papers.md was made with; `./run.sh papers --write` writes it anew"
    return [f"{name}: {remedy}" for name in names]


def stale_files(wanted):
    """A complaint for each file whose content differs."""
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
        "--write", action="store_true", help="write docs/results/papers.md, its figure, and the table and row of docs/accuracy.md"
    )
    parser.add_argument("--check", action="store_true", help="compare them instead")
    parser.add_argument("--check-first", action="store_true", help="compare only the first draw with docs/results/papers.md: short")
    parser.add_argument("--check-accuracy", action="store_true", help="compare only docs/accuracy.md with docs/results/papers.md")
    args = parser.parse_args()
    if args.check_accuracy:
        stale = stale_files({ACCURACY: with_counts(ACCURACY.read_text(), RESULTS.read_text(), ACCURACY)})
        print("\n".join(stale), file=sys.stderr)
        return 1 if stale else 0
    if (args.paper or args.seeds != SEEDS) and (args.write or args.check or args.check_first):
        parser.error("--write, --check and --check-first take all papers and their own number of draws")
    run = Runner(args.program, keep=args.keep)
    makers = [make for paper in PAPERS.values() for make in paper.makers]
    if args.check_first:
        stale = other_tables(RESULTS.read_text(), digests_of(tables_of(makers, run, 1)))
        print("\n".join(stale), file=sys.stderr)
        return 1 if stale else 0
    tables, missing = [], []
    wanted = [paper for name, paper in PAPERS.items() if args.paper in (None, name)]
    progress = Progress(args.seeds * sum(len(paper.makers) for paper in wanted))
    for paper in wanted:
        progress.what = paper.name
        progress.show(paper.name) if sys.stderr.isatty() else print(paper.name, file=sys.stderr)
        tables += tables_of(paper.makers, run, args.seeds, progress)
        missing += [(paper.name, *line) for line in paper.not_here]
    text = (
        summary_of(tables)
        + "\n"
        + not_here(missing)
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
            RESULTS: with_digests(text, digests_of(tables_of(makers, run, 1))),
            ACCURACY: with_counts(ACCURACY.read_text(), text, ACCURACY),
        }
        if args.write:
            for path, content in wanted.items():
                path.write_text(content)
            draw_papers(text)
        else:
            stale = stale_files(wanted)
            print("\n".join(stale), file=sys.stderr)
    return 1 if wrong or stale else 0


if __name__ == "__main__":
    sys.exit(main())

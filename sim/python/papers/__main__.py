"""Prints every table and figure that we repeat, the paper's next to ours, each paper by one setting.

  python3 -m papers [--program build/release/bin/equipoise] [--paper wlb_llm] [--out FILE.md]
  python3 -m papers --write                 # docs/results/papers.md, its figure (needs matplotlib), results.json here, and the table
                                            # and row of docs/accuracy.md
  python3 -m papers --check                 # exit 1 unless these are what comes out today
  python3 -m papers --check-first           # only the first draw of each table against its digest in results.json
  python3 -m papers --check-accuracy        # only docs/accuracy.md against the page of results: no simulation

Exit 1 also where a headline has another sign than published. What is printed is Markdown.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

from figures import draw_papers

from .page import BEGIN, END, block_of, data_of, figures_of, markdown, page_of, row_of
from .runner import ROOT, Runner
from .seeds import Progress, tables_of
from .tables import Paper

HERE = Path(__file__).resolve().parent
PAPERS = {name: Paper(HERE / f"{name}.toml") for name in ("wlb_llm", "chunkflow", "hbp", "skrull")}
RESULTS, ACCURACY, DATA = ROOT / "docs/results/papers.md", ROOT / "docs/accuracy.md", HERE / "results.json"


def with_counts(text, results, path):
    """The text of docs/accuracy.md with what the page of results counts: the table between the marks, and the row of what was validated."""
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
    """A line for each table: its digest and its title. The data end with those of the first draw."""
    return [f"{hashlib.sha256(markdown(t).encode()).hexdigest()[:16]} {t.paper}: {t.title}" for t in tables]


def data_text(tables, first):
    """results.json: every figure, and the digests of the first draw; a line each."""
    lines = (",\n".join(map(json.dumps, part)) for part in (data_of(tables), digests_of(first)))
    return '{"figures": [\n%s\n], "first_draw": [\n%s\n]}\n' % tuple(lines)


def other_tables(known, lines):
    """A complaint for each table whose first draw is not the one that results.json was made with."""
    only = [line for line in lines if line not in known] + [line for line in known if line not in lines]
    names = dict.fromkeys(line.split(" ", 1)[1] for line in only)
    remedy = "the first draw is not what docs/results/papers.md was made with; `./run.sh papers --write` writes it anew"
    return [f"{name}: {remedy}" for name in names]


def stale_files(wanted):
    """A complaint for each file that holds something else."""
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
    parser.add_argument("--seeds", type=int, help="draws of lengths instead of each paper's own; fewer for a quick look")
    parser.add_argument("--keep", help="folder for what was run: a later call of the same program takes it from there")
    parser.add_argument("--out", help="also write it to this file")
    parser.add_argument(
        "--write", action="store_true", help="write docs/results/papers.md with its figure and data, and the table and row of docs/accuracy.md"
    )
    parser.add_argument("--check", action="store_true", help="compare them instead")
    parser.add_argument("--check-first", action="store_true", help="compare only the first draw with results.json: short")
    parser.add_argument("--check-accuracy", action="store_true", help="compare only docs/accuracy.md with docs/results/papers.md")
    args = parser.parse_args()
    if args.check_accuracy:
        stale = stale_files({ACCURACY: with_counts(ACCURACY.read_text(), RESULTS.read_text(), ACCURACY)})
        print("\n".join(stale), file=sys.stderr)
        return 1 if stale else 0
    if (args.paper or args.seeds) and (args.write or args.check or args.check_first):
        parser.error("--write, --check and --check-first take all papers and their own number of draws")
    run = Runner(args.program, keep=args.keep)
    makers = [make for paper in PAPERS.values() for make in paper.makers]
    if args.check_first:
        stale = other_tables(json.loads(DATA.read_text())["first_draw"], digests_of(tables_of(makers, run, 1)))
        print("\n".join(stale), file=sys.stderr)
        return 1 if stale else 0
    tables = []
    wanted = [paper for name, paper in PAPERS.items() if args.paper in (None, name)]
    progress = Progress(sum((args.seeds or paper.draws) * len(paper.makers) for paper in wanted))
    for paper in wanted:
        progress.what = paper.name
        progress.show(paper.name) if sys.stderr.isatty() else print(paper.name, file=sys.stderr)
        tables += tables_of(paper.makers, run, args.seeds or paper.draws, progress)
    text = page_of(wanted, tables)
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
            DATA: data_text(tables, tables_of(makers, run, 1)),
            ACCURACY: with_counts(ACCURACY.read_text(), text, ACCURACY),
        }
        if args.write:
            for path, content in wanted.items():
                path.write_text(content)
            draw_papers({"figures": data_of(tables)})
        else:
            stale = stale_files(wanted)
            print("\n".join(stale), file=sys.stderr)
    return 1 if wrong or stale else 0


if __name__ == "__main__":
    sys.exit(main())

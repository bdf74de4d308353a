"""Which policy is fastest where: every policy on every trace and job.

  python3 -m atlas                                  prints the page
  python3 -m atlas --write                          writes docs/results/atlas.md and its figure (needs matplotlib); --check compares the page
  python3 -m atlas --keep FOLDER --share i/n        runs every n-th cell from cell i, for the others to find in FOLDER
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import draw_atlas
from papers.runner import ROOT, Runner

from .cells import cell_of
from .page import page, picture
from .settings import JOBS, TRACES

HERE = Path(__file__).resolve().parent


def share_of(text):
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"expected i/n with i from 0 to n - 1, found {text}")
    return int(number), int(count)


def main():
    parser = argparse.ArgumentParser(prog="atlas", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--keep", metavar="FOLDER", help="what was run is kept there and not run again")
    parser.add_argument("--share", type=share_of, metavar="i/n", help="with --keep: only every n-th cell, from cell i (0 is the first)")
    parser.add_argument("--write", action="store_true", help="write docs/results/atlas.md, its figure and atlas.json")
    parser.add_argument("--check", action="store_true", help="exit 1 where docs/results/atlas.md says something else")
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time")
    args = parser.parse_args()
    if args.share and not args.keep:
        parser.error("--share: expected --keep FOLDER with it, where the other machines find what this one ran")
    runner = Runner(args.program, keep=args.keep, ignore_memory=False)
    grid = [(job, name, lengths) for job in JOBS for name, lengths in TRACES.items()]
    if args.share:
        grid = grid[args.share[0] :: args.share[1]]
    with ThreadPoolExecutor(args.jobs) as pool:
        cells = list(pool.map(lambda cell: cell_of(runner, *cell), grid))
    if args.share:
        return
    version = subprocess.run([args.program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    text = page(cells, version)
    written = HERE.parents[2] / "docs/results/atlas.md"
    if args.check:
        sys.exit(0 if written.read_text(encoding="utf-8") == text else f"error: {written} is not what the program says now: --write")
    if args.write:
        written.write_text(text, encoding="utf-8")
        (HERE / "atlas.json").write_text(json.dumps(picture(cells), indent=0), encoding="utf-8")
        draw_atlas(picture(cells))
    else:
        print(text)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The pictures of pages that the docs show, made anew: ./run.sh pictures

Each is the head of a page in a headless Chromium, as wide as the docs show it, in light colours. Fonts are the machine's,
so that no test compares them.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests/cli"))
from browser import Browser, Page, find_browser  # noqa: E402

FIRST, STUDY = "traces/studies/first-study.json", "traces/studies/7b-128k.json"
SWEEP = ["--sweep", "batch.context_window=32K,64K,128K,256K", "--sweep", "parallel.context=1,2,4,8", "--set", "batch.steps=60"]
TUNE = ["--set", "batch.steps=20", "--budget", "500"]
# Name, command, height in pixels, and the section that is shown; the head of the page where there is none.
PICTURES = [
    ("report", ["study", FIRST], 1270, None),
    ("sweep", ["study", STUDY, *SWEEP], 520, "sweep"),
    ("tune", ["tune", STUDY, *TUNE], 900, "layouts"),
]


# The simulator in a page, once it has run its first study.
SIMULATOR, SIMULATOR_HEIGHT = ROOT / "dist/equipoise.html", 760
SIMULATOR_READY = """new Promise(done => { const look = () => document.querySelector("#report[aria-busy=false] #study-report") && !document.querySelector(".next")
  ? done() : setTimeout(look, 100); look(); })"""


def take(page, file, height, part=None):
    page.screenshot(file, height, part)
    if complaints := page.complaints():
        sys.exit(f"pictures: {file.stem}: {complaints}")
    page.close()
    print(file)


def main():
    parser = argparse.ArgumentParser(prog="pictures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--only", choices=[name for name, *_ in PICTURES] + ["simulator"])
    args = parser.parse_args()
    if not find_browser():
        sys.exit("pictures: no Chromium here (Debian: chromium)")
    browser = Browser()
    try:
        for name, command, height, part in PICTURES:
            if args.only not in (None, name):
                continue
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([args.program, *command, "--quiet", "--out", folder], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
                take(Page(browser, Path(folder) / "report.html", width=1090), HERE / f"{name}.png", height, part)
        if args.only in (None, "simulator"):
            page = Page(browser, SIMULATOR, width=1280)
            page.evaluate(SIMULATOR_READY)
            take(page, ROOT / "docs/how-to/simulator-in-a-page.png", SIMULATOR_HEIGHT)
    finally:
        browser.close()


if __name__ == "__main__":
    main()

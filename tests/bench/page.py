"""What a user of the page waits for: first rows after opening it, and after a change of the first study.

    ./run.sh web && python3 tests/bench/page.py [PAGE] [--times N]
"""

import argparse
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cli"))
from browser import Browser, Page  # noqa: E402

# Each has another value of one key, so that nothing of the study before it can be shown.
CHANGES = {"network card": "study.cluster.network.nic_GBps = {0}", "window": "study.batch.context_window = 65536 + 1024 * {0}",
           "windows per step": "study.batch.sequences_per_step = 8 * {0}"}

# Seconds until the first rows and until all of them are drawn, looked at in each frame of the browser.
WAIT = """(async () => {
  const until = async (shown) => { while (!shown()) await new Promise(requestAnimationFrame); return (performance.now() - begin) / 1000; };
  const begin = %s, before = %s;
  %s;
  return [await until(() => document.getElementById("study-report") !== before),
          await until(() => document.getElementById("report").getAttribute("aria-busy") === "false")];
})()"""


def seconds_of(browser, file, number):
    """By what a user waits for, seconds to the first rows and to all of them."""
    page = Page(browser, file)
    seconds = {"opening": page.evaluate(WAIT % (0, "null", ""))}
    for name, change in CHANGES.items():
        seconds[f"another {name}"] = page.evaluate(WAIT % ("performance.now()", "document.getElementById('study-report')", change.format(number + 3) + "; commit()"))
    page.close()
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", default=ROOT / "dist/equipoise.html")
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    if not pathlib.Path(given.page).is_file():
        parser.error(f"{given.page}: expected the page that ./run.sh web makes, found no such file")
    browser = Browser()
    try:
        runs = [seconds_of(browser, given.page, number) for number in range(given.times)]
    finally:
        browser.close()
    for name in runs[0]:
        for rows, times in zip(("first rows", "all rows"), zip(*(run[name] for run in runs))):
            print(f"{rows} after {name}: {statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    main()

"""What commands cost as whole processes, several programs taking turns, and what repeated costs say."""
import dataclasses
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time


@dataclasses.dataclass(frozen=True)
class Cost:
    cpu: float  # user and system seconds of the process
    elapsed: float
    peak_MB: float  # resident, at its most; a child starts with what its parent holds, some 10 MB
    text: str = ""  # what it printed, or why it did not run
    written_MB: float = 0  # in the folder that it was given
    status: str = "ok"  # "refused" (exit 2), "failed" or "late"


def files_MB(folder, pattern):
    return sum(f.stat().st_size for f in pathlib.Path(folder).rglob(pattern) if f.is_file()) / 1e6


def measure(command, most_seconds, folder=None, pattern="*"):
    """Runs the command to its end, or kills it after `most_seconds`; of what it wrote to `folder` the files of that
    pattern are weighed, and all is removed."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        begin = time.monotonic()
        child = subprocess.Popen([str(c) for c in command], stdout=out, stderr=errors)
        late = threading.Event()

        def stop():
            late.set()
            os.kill(child.pid, signal.SIGKILL)

        timer = threading.Timer(most_seconds, stop)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        elapsed = time.monotonic() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        text, why = out.read(4096), errors.read(4096)
    written = files_MB(folder, pattern) if folder else 0
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    kind = {0: "ok", 2: "refused"}.get(child.returncode, "late" if late.is_set() else "failed")
    text = text if kind == "ok" else why.strip()
    return Cost(usage.ru_utime + usage.ru_stime, elapsed, usage.ru_maxrss / 1024, text, written, kind)


def take_turns(names, run, repeats, most_seconds):
    """[run(name)] of each name, alternating, each second round the other way about. A name stops after `repeats` runs,
    after one that does not end well, and where another would take it above `most_seconds`."""
    costs, spent = {name: [] for name in names}, dict.fromkeys(names, 0.0)
    for round_ in range(repeats):
        for name in names if round_ % 2 == 0 else reversed(names):
            done = len(costs[name])
            if done and (costs[name][-1].status != "ok" or spent[name] * (done + 1) / done > most_seconds):
                continue
            begin = time.monotonic()
            costs[name].append(run(name))
            spent[name] += time.monotonic() - begin
    return costs


@dataclasses.dataclass(frozen=True)
class Spread:
    median: float
    half_range: float  # half of the difference of the largest and the smallest, as a share of the median


def spread(values):
    median = statistics.median(values)
    return Spread(median, (max(values) - min(values)) / 2 / median if median else 0)


def exponent(points):
    """p of cost = c * size^p: least squares of log(cost) on log(size)."""
    xs, ys = [math.log(size) for size, _ in points], [math.log(cost) for _, cost in points]
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs)


def fixed_cost(once, more, times):
    """What does not grow with the work, from the cost of some work and of so many times that work."""
    return min(max(0.0, (times * once - more) / (times - 1)), 0.9 * once)

"""What the tests of the module share."""

import json
import os
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("EQUIPOISE", str(ROOT / "build/release/bin/equipoise"))


def program(*arguments):
    """What the program prints, as JSON."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def program_error(*arguments):
    """The line with which the program refuses."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 2, done
    return done.stderr.removeprefix("error: ").rstrip("\n")


def beats_during(work):
    """How often another thread runs, once a millisecond at most, while `work` does."""
    beats = []
    done = threading.Event()

    def beat():
        while not done.is_set():
            beats.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=beat)
    thread.start()
    begin = time.perf_counter()
    work()
    end = time.perf_counter()
    done.set()
    thread.join()
    return sum(begin < t < end for t in beats)


def without_measured(value):
    """The value without what is measured on this machine."""
    if isinstance(value, dict):
        return {key: without_measured(v) for key, v in value.items() if key != "measured"}
    if isinstance(value, list):
        return [without_measured(v) for v in value]
    return value


# Small and quick: 8 documents of 2K a step on 4 GPUs.
STUDY = {
    "name": "small",
    "trace": {"distribution": "wlb-128k", "documents": 4000, "seed": 3},
    "model": "llama2-7b",
    "cluster": {"profile": "h100-sxm"},
    "parallel": {"tensor": 4, "context": 2, "pipeline": 2, "data": 2},
    "batch": {"context_window": 32768, "sequences_per_step": 8, "steps": 6},
    "policies": [
        {"name": "plain"},
        {"name": "fixed-greedy", "oversize": "split"},
        {"name": "wlb", "queues": 1},
    ],
}

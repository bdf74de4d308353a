#!/usr/bin/env python3
"""Cost of `study --contention` by cluster size: CPU seconds, elapsed seconds and peak memory of whole processes.

  python3 tests/bench/contention_scale.py [--program build/release/bin/equipoise] [--before OTHER] [--most-seconds 120]

One step of one policy of 405b-8k-gpus.json (TP 8, PP 16, 32 micro-batches a replica) on a fat tree oversubscribed 4:1:
replicas of CP 4 from 512 to 8,192 GPUs, whose exponent in GPUs is fitted, and the study as it stands (CP 16, DP 4)."""
import argparse
import math
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = ["--fidelity", "op", "--contention", "--ignore-memory", "--quiet", "--set", "batch.steps=1", "--set",
         "cluster.network.topology=fat-tree", "--set", "cluster.network.oversubscription=4", "--set", 'policies=["plain-4d"]']


def measure(program, settings, most_seconds):
    """CPU, elapsed seconds and peak MB; none where it takes too long or fails."""
    command = [program, "study", str(ROOT / "traces/studies/405b-8k-gpus.json"), *FLAGS]
    for setting in settings:
        command += ["--set", setting]
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() - begin > most_seconds:
            child.kill()
            os.wait4(child.pid, 0)
            return None
        time.sleep(0.01)
    return None if status else (usage.ru_utime + usage.ru_stime, time.monotonic() - begin, usage.ru_maxrss / 1024)


def exponent(points):
    """Least squares of log(CPU) on log(GPUs)."""
    xs, ys = [math.log(g) for g, _ in points], [math.log(cpu) for _, cpu in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--before", help="another build to print beside it")
    parser.add_argument("--most-seconds", type=float, default=120)
    options = parser.parse_args()
    programs = [("now", options.program)] + ([("before", options.before)] if options.before else [])
    rows = [(512 << i, [f"parallel.data={1 << i}", "parallel.context=4", f"batch.sequences_per_step={32 << i}"])
            for i in range(5)]
    points = {name: [] for name, _ in programs}
    print(f"{'GPUs':>6} {'CP':>3} {'DP':>3} " + " ".join(f"{name + ': CPU s':>14} {'elapsed s':>10} {'peak MB':>8}"
                                                          for name, _ in programs))
    for gpus, settings in rows + [(8192, [])]:
        line = f"{gpus:>6} {4 if settings else 16:>3} {gpus // 512 if settings else 4:>3} "
        for name, program in programs:
            cost = measure(program, settings, options.most_seconds)
            if cost is None:
                line += f" {'-':>14} {'-':>10} {'-':>8}"
                continue
            if settings:
                points[name].append((gpus, cost[0]))
            line += f" {cost[0]:>14.2f} {cost[1]:>10.2f} {cost[2]:>8.0f}"
        print(line, flush=True)
    for name, of_program in points.items():
        if len(of_program) > 1:
            print(f"exponent in GPUs, {name}: {exponent(of_program):.2f}")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Link contention against SimGrid's flow model: the flows of one step, on the same network, from the same starts.

  python3 tests/bench/against_simgrid.py [--build build/release] [--jobs 512x4,2048x16]

flow_trace writes the flows of every GPU over all links that they share; simgrid_flows.cpp simulates them with SimGrid
(CM02). All must end within 1 % of our times, and ours take at most 1/20 of the CPU time: `flows` is our solver with the
network as it reduces it (TP ranks and links that are alike once), `all` the same without that, on SimGrid's very input,
`step` the whole contended step, its ranks included.
Without SimGrid (Debian: libsimgrid-dev) nothing is compared."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MOST_OFF, LEAST_FASTER = 0.01, 20


def build_simgrid(folder):
    """The program of simgrid_flows.cpp; None without SimGrid."""
    program = folder / "simgrid_flows"
    found = subprocess.run(["g++", "-x", "c++", "-E", "-include", "simgrid/s4u.hpp", "/dev/null"], capture_output=True)
    if found.returncode:
        return None
    subprocess.run(["g++", "-O2", "-std=c++17", HERE / "simgrid_flows.cpp", "-o", program, "-lsimgrid"], check=True)
    return program


def last_json(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def version():
    of_it = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libsimgrid-dev"], capture_output=True, text=True)
    return of_it.stdout or "of unknown version"


def compare(trace, simgrid, job, flows):
    """What SimGrid and what flow_trace print for the flows of one step; `flows`: the file that one writes and the other reads."""
    ours = last_json([trace, *job.split("x"), flows])
    return last_json([simgrid, flows]), ours


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--jobs", default="512x4,1024x4,2048x16", help="GPUs x CP, of TP 8 and PP 16")
    options = parser.parse_args()
    trace = next(options.build.rglob("flow_trace"))
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        simgrid = build_simgrid(folder)
        if not simgrid:
            print("SimGrid is not installed: nothing to compare with")
            return
        print(f"{'GPUs':>6} {'CP':>3} | {'flows':>8} {'SimGrid s':>10} | {'flows':>8} {'flows s':>8} {'faster':>7} {'all s':>7} {'step s':>7} |"
              f" {'worst off':>10} {'mean off':>10}")
        for job in options.jobs.split(","):
            gpus, context = job.split("x")
            theirs, ours = compare(trace, simgrid, job, folder / "flows")
            faster = theirs["cpu"] / max(ours["flows_cpu"], 1e-6)
            failed |= theirs["worst"] > MOST_OFF or faster < LEAST_FASTER
            print(f"{gpus:>6} {context:>3} | {theirs['flows']:>8} {theirs['cpu']:>10.3f} | {ours['flows']:>8} {ours['flows_cpu']:>8.4f}"
                  f" {faster:>6.0f}x {ours['all_flows_cpu']:>7.3f} {ours['step_cpu']:>7.3f} | {theirs['worst']:>10.1e} {theirs['mean']:>10.1e}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

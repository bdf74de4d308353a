#!/usr/bin/env python3
"""What a BatchSampler costs per global batch, measured, and what the papers print.

  python3 sampler_overhead.py [--documents 200000] [--repeat 5]

WLB-LLM (arXiv 2503.17924, Table 2) prints for 4 micro-batches of 128K: greedy 4-5 ms, solver 467-25,313 ms,
its own policy with two queues 20 ms a batch. Below: planning an epoch of documents of the same shape
(published distribution wlb-128k), divided by its global batches; and what handing out a step's micro-batches
takes.
"""

import argparse
import statistics
import time

import equipoise

POLICIES = {
    "plain": {},
    "fixed-greedy": {"pack_window": 1},
    "fixed-greedy, 8 batches": {"pack_window": 8},
    "wlb": {"queues": 2},
    "chunkflow": {"chunk_size": "8K"},
    "lpt": {},
    "karmarkar-karp": {},
}


def measure(lengths, policy, options):
    """Milliseconds a global batch: planning, handing out."""
    begin = time.perf_counter()
    sampler = equipoise.BatchSampler(
        lengths, policy, slices=True, context_window="128K", sequences_per_step=4, **options
    )
    len(sampler)
    planned = time.perf_counter()
    steps = sum(1 for step in sampler.steps() for _ in [list(step)])
    handed_out = time.perf_counter()
    return 1000 * (planned - begin) / steps, 1000 * (handed_out - planned) / steps, steps


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=5, help="the median of so many")
    args = parser.parse_args()
    lengths = equipoise.draw_trace("wlb-128k", args.documents)
    print(f"{'policy':<24} {'batches':>8} {'plan ms':>9} {'hand out ms':>12}   per global batch, measured")
    for name, options in POLICIES.items():
        runs = [measure(lengths, name.split(",")[0], options) for _ in range(args.repeat)]
        plan, hand_out = (statistics.median(run[i] for run in runs) for i in (0, 1))
        print(f"{name:<24} {runs[0][2]:>8} {plan:>9.3f} {hand_out:>12.3f}")


if __name__ == "__main__":
    main()

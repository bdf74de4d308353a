#!/usr/bin/env python3
"""Prints what a samples file says of a device: achieved rates of attention and GEMM by size, and cuDNN's published
figures for the same attention shapes where they exist."""
import json
import sys

# H200, cuDNN 9.19.1, bf16, 64 query and 8 KV heads of 128, causal: TFLOP/s by sequence length (forward, backward).
# Source: github.com/NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/results/h200_919_only_cudnn.
PUBLISHED = {2048: (484, 370), 4096: (591, 474), 8192: (644, 541), 16384: (673, 579), 32768: (688, 581)}


def attention_flops(sample):
    pairs = sum(q * (k - q) + q * (q + 1) / 2 for q, k in sample["pieces"])
    forward = 4 * sample["query_heads"] * sample["head_dim"] * pairs
    return forward if sample["pass"] == "forward" else 2.5 * forward


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def print_rates(title, rows):
    """rows: (work, TFLOP/s); one line a decade of work."""
    print(title)
    decades = {}
    for flops, rate in rows:
        decades.setdefault(len(str(int(flops))) - 1, []).append(rate)
    for decade, rates in sorted(decades.items()):
        print(f"  1e{decade:<3} flop  {len(rates):5} samples  median {median(rates):9.3f}  best {max(rates):9.3f} TFLOP/s")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: rates.py SAMPLES.json")
    with open(sys.argv[1], encoding="utf-8") as file:
        samples = json.load(file)["samples"]
    for direction in ("forward", "backward"):
        rows = [(attention_flops(s), 1e-12 * attention_flops(s) / s["seconds"])
                for s in samples["attention"] if s["pass"] == direction]
        if rows:
            print_rates(f"attention {direction}, true causal work", rows)
    rows = [(2 * s["m"] * s["n"] * s["k"], 2e-12 * s["m"] * s["n"] * s["k"] / s["seconds"]) for s in samples["gemm"]]
    if rows:
        print_rates("gemm", rows)
    for sample in samples["attention"]:
        pieces = sample["pieces"]
        shape = (sample["head_dim"], sample["query_heads"], sample["kv_heads"])
        if len(pieces) != 1 or pieces[0][0] != pieces[0][1] or shape != (128, 64, 8) or pieces[0][0] not in PUBLISHED:
            continue
        published = PUBLISHED[pieces[0][0]][sample["pass"] == "backward"]
        rate = 1e-12 * attention_flops(sample) / sample["seconds"]
        print(f"s = {pieces[0][0]:6} {sample['pass']:8} {rate:7.1f} TFLOP/s, published for an H200 {published}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Refits the shipped profiles from the public tables and compares errors and parameters with what they state.

usage: refit.py EQUIPOISE_PROGRAM [--update]

EQUIPOISE_PUBLIC_DATA names a folder with measurements/*.csv and lengths/magi_doc_length_histogram.csv (the columns
are in docs/reference/formats.md). Without it the test is skipped. --update rewrites profiler/profiles/ instead.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from public_rows import rewritten

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ("h100-sxm", "h100-500w", "h200-sxm", "h800-sxm", "a100-sxm", "h20", "b200-sxm",
            "gb200-nvl72", "gb300-nvl72", "mi300x")  # in this order: the others derive tables from the first
TABLES = ("attention_kernels", "gemm_kernels", "elementwise_norm_kernels", "nccl_single_node", "nccl_multi_node")
DAY = "2026-11-27"
MEASURED = {gpu: (f"{gpu[:4]}-{DAY}.json.zst", f"{gpu[:4]}-{DAY}-torch.json") for gpu in ("h100-sxm", "h200-sxm")}  # profiler/measured
SKIPPED = 77


def leaves(node, path=""):
    """(path, value) of every number, text and truth value below `node`."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from leaves(value, f"{path}[{index}]")
    else:
        yield path, node


def differences(stated, refitted):
    stated, refitted = dict(leaves(stated)), dict(leaves(refitted))
    for path in sorted(stated.keys() | refitted.keys()):
        old, new = stated.get(path), refitted.get(path)
        both = isinstance(old, (int, float)) and isinstance(new, (int, float))
        # Rounding of libm may differ between machines; a fit may then stop a step earlier.
        near = both and abs(old - new) <= 2e-3 + 0.02 * abs(old)
        if old != new and not near:
            yield f"{path}: stated {old}, refitted {new}"


def main():
    program = sys.argv[1]
    data = os.environ.get("EQUIPOISE_PUBLIC_DATA")
    if not data:
        print("skipped: EQUIPOISE_PUBLIC_DATA names no folder with the public tables")
        return SKIPPED
    data = Path(data)
    update = "--update" in sys.argv[2:]
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        out = ROOT / "profiler/profiles" if update else Path(scratch)
        tables = [data / "measurements" / f"{table}.csv" for table in TABLES]
        tables += rewritten(data / "measurements", scratch)
        for name in PROFILES:
            environment = dict(os.environ, EQUIPOISE_PROFILES=str(out))
            subprocess.run(
                [program, "fit", "--samples", *map(str, tables),
                 *(str(ROOT / "profiler/measured" / file) for file in MEASURED.get(name, ())),
                 "--recipe", str(ROOT / "profiler/recipes" / f"{name}.json"),
                 "--document-histogram", str(data / "lengths/magi_doc_length_histogram.csv"),
                 "--out", str(out / f"{name}.json")],
                check=True, env=environment)
            if update:
                continue
            stated = json.loads((ROOT / "profiler/profiles" / f"{name}.json").read_text())
            refitted = json.loads((out / f"{name}.json").read_text())
            for line in differences(stated, refitted):
                print(f"{name}{line}")
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

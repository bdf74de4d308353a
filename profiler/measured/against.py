#!/usr/bin/env python3
"""How far off profiles' tables are on what was measured here, as the table in docs/results/measured-kernels.md.

    against.py PROGRAM GPU=BASE...      GPU: h100 or h200; BASE: a profile's name or file

The page's is of the profiles before these samples: git show 70a073a4:profiler/profiles/h200-sxm.json > before200.json
and the same of h100-sxm, then against.py equipoise h100=before100.json h200=before200.json
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DAY = "2026-11-27"
CUDNN = {"h100": "cudnn-te", "h200": "cudnn"}  # the table that represents it: Transformer Engine's dense
                                               # calls on an H100
LARGE = 64e6  # bytes beyond any cache


def flop(sample):
    return 2 * sample["m"] * sample["n"] * sample["k"]


def of_llama(sample):
    """llama3.1-8b's heads on whole documents, one of them longer than 512 tokens."""
    squares = all(queries == keys for queries, keys in sample["pieces"])
    return squares and sample["query_heads"] == 32 and max(sample["pieces"])[0] > 512


def groups(ours, torch, cudnn):
    """(title, kind of table, samples as the base's tables know them)"""
    yield "products, bf16", "gemm", ours["gemm"]
    yield "... of 10^10 FLOP and more", "gemm", [s for s in ours["gemm"] if flop(s) >= 1e10]
    for name in ("forward", "backward"):
        calls = [s for s in torch["attention"] if s["pass"] == name]
        yield f"FlashAttention-2 of PyTorch, {name}", "attention", calls
        yield "... 32 heads over 8, longest document above 512 tokens", "attention", [s for s in calls if of_llama(s)]
    for name in ("forward", "backward"):
        calls = [{**s, "kernel": cudnn} for s in ours["attention"] if s["pass"] == name]
        yield f"cuDNN's attention, packed, {name}", "attention", calls
        yield "... of several documents", "attention", [s for s in calls if s["what"] == "packed documents"]
    for size, holds in (("from 64 MB on", lambda s: s["bytes"] >= LARGE), ("below", lambda s: s["bytes"] < LARGE)):
        for op in ("rope", "residual_add", "swiglu", "rms_norm", "cross_entropy", "optimizer", "copy"):
            rows = [s for s in ours["elementwise"] if s["op"] == op and s.get("pass") != "backward" and holds(s)]
            yield f"{op}, {size}", "elementwise", rows
    for scale in ("tensor", "row"):
        rows = [{**s, "kernel": ""} for s in torch["gemm"] if s.get("kernel") == f"torch-{scale}-scale"]
        yield f"FP8 products by cuBLASLt, a scale a {scale}", "gemm", rows
    for form, what in (("NT", "output"), ("NN", "input gradients"), ("TN", "weight gradients")):
        rows = [{**s, "kernel": "cutlass-grouped"} for s in torch["gemm"] if s.get("groups") and s["form"] == form]
        yield f"experts in one call, {what}, by cutlass-grouped", "gemm", rows


def base_error(program, base, kind, samples, folder):
    file, out = folder / "samples.json", folder / "calibrated.json"
    file.write_text(json.dumps({"device": {"name": "measured"}, "samples": {kind: samples}}))
    done = subprocess.run([program, "fit", str(file), "--base", base, "--out", str(out)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip().splitlines()[-1])
    found = []

    def walk(node):
        if isinstance(node, dict):
            if "base_error" in node:
                found.append(node["base_error"])
            for below in node.values():
                walk(below)

    walk(json.loads(out.read_text())["tables"])
    assert len(found) == 1, found
    return found[0]


def figures(program, gpu, base):
    """{title: its three errors as text} of one GPU, and how many calls they are of."""
    packed = (HERE / f"{gpu}-{DAY}.json.zst").read_bytes()
    ours = json.loads(subprocess.run(["zstd", "-dcq"], input=packed, capture_output=True, check=True).stdout)["samples"]
    torch = json.loads((HERE / f"{gpu}-{DAY}-torch.json").read_text())["samples"]
    parent = ""
    with tempfile.TemporaryDirectory() as scratch:
        for title, kind, samples in groups(ours, torch, CUDNN[gpu]):
            parent = parent if title.startswith("...") else title
            e = base_error(program, base, kind, samples, Path(scratch))
            shown = f"{e['samples']} | {100 * e['median']:.1f} % | {100 * e['p90']:.1f} % | {100 * e['bias']:+.1f} %"
            yield (parent, title), shown


def main():
    asked = dict(argument.partition("=")[::2] for argument in sys.argv[2:])
    if not asked or not set(asked) <= {"h100", "h200"}:
        sys.exit(__doc__.strip())
    found = {gpu: dict(figures(sys.argv[1], gpu, base)) for gpu, base in asked.items()}
    columns = " | ".join(f"{gpu.upper()}: calls | median | 90th | signed" for gpu in found)
    print(f"| kernels | {columns} |\n|{' --- |' * (1 + 4 * len(found))}")
    for row in next(iter(found.values())):
        print(f"| {row[1]} | {' | '.join(of_gpu[row] for of_gpu in found.values())} |")


if __name__ == "__main__":
    main()

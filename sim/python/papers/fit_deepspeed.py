"""Fits the slowdowns of the preset `deepspeed` to HBP's steps without packing (arXiv 2503.07680, strategies).

  python3 -m papers.fit_deepspeed [--program build/release/bin/equipoise] [--write]

The rows: Llama-3.1-8B, 32 H100, DeepSpeed with Ulysses, 512K tokens a step, every document as long as its
sequence, SP degree and checkpointed layers as printed. They say how fast the framework is and nothing of any
packing, whose gains are then predicted. Two numbers are fitted, of GEMM and of attention; the elementwise one
stays FSDP's (of 24 November 2026), since it moves every row as GEMM's does. Each length is left out in its turn: those errors are
what the preset states.
"""

import argparse
import datetime
import json
import math
import sys

from .hbp import STRATEGIES, strategy_seconds
from .runner import ROOT, Runner

PRESET = ROOT / "sim/framework/presets/deepspeed.json"
SOURCE = "https://arxiv.org/abs/2503.07680, strategies of Llama-3.1-8B: one document a sequence, no packing"
LEAST = 1.0  # a kernel in training is not faster than alone
STEP = 0.03  # of a logarithm, for the derivative


class Rows:
    def __init__(self, run):
        self.run = run
        self.known = {}

    def errors(self, gemm, attention):
        """ln(simulated / published) of every row."""
        at = round(gemm, 4), round(attention, 4)
        if at not in self.known:
            self.known[at] = [
                math.log(
                    strategy_seconds(self.run, row, gemm_slowdown=at[0], attention_slowdown=at[1])
                    / row.seconds
                )
                for row in STRATEGIES
            ]
        return self.known[at]


def fit(rows, seen):
    """GEMM and attention slowdown with the least squares over the rows `seen`: Gauss-Newton on logarithms."""
    gemm, attention = 1.3, 1.1
    for _ in range(12):
        here = rows.errors(gemm, attention)
        of_gemm = rows.errors(gemm * math.exp(STEP), attention)
        of_attention = rows.errors(gemm, attention * math.exp(STEP))
        slopes = [((of_gemm[i] - here[i]) / STEP, (of_attention[i] - here[i]) / STEP) for i in seen]
        aa, ab, bb = (sum(s[j] * s[k] for s in slopes) for j, k in ((0, 0), (0, 1), (1, 1)))
        a, b = (sum(s[j] * here[i] for s, i in zip(slopes, seen)) for j in (0, 1))
        determinant = aa * bb - ab * ab
        to_attention = max(math.log(LEAST / attention), -(aa * b - ab * a) / determinant)
        to_gemm = max(math.log(LEAST / gemm), -(a + ab * to_attention) / aa)
        gemm, attention = gemm * math.exp(to_gemm), attention * math.exp(to_attention)
        if abs(to_gemm) + abs(to_attention) < 2e-4:
            break
    return round(gemm, 3), round(attention, 3)


def summary(errors):
    return {
        "rows": len(errors),
        "mean_abs_error": round(sum(map(abs, errors)) / len(errors), 4),
        "mean_error": round(sum(errors) / len(errors), 4),
        "worst": round(max(errors, key=abs), 4),
    }


def main():
    parser = argparse.ArgumentParser(
        prog="papers.fit_deepspeed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--write", action="store_true", help="write the shipped preset")
    args = parser.parse_args()
    with open("/dev/null", "w", encoding="ascii") as nowhere:
        rows = Rows(Runner(args.program, nowhere))
        left_out, by_length = [], {}
        for length in dict.fromkeys(row.length for row in STRATEGIES):
            own = [i for i, row in enumerate(STRATEGIES) if row.length == length]
            slowdowns = fit(rows, [i for i in range(len(STRATEGIES)) if i not in own])
            errors = [math.exp(rows.errors(*slowdowns)[i]) - 1 for i in own]
            print(
                f"without {length}: GEMM x{slowdowns[0]}, attention x{slowdowns[1]}; its rows "
                + ", ".join(f"{100 * e:+.1f} %" for e in errors)
            )
            by_length[f"sequences_of_{length}"] = summary(errors)
            left_out += errors
        gemm, attention = fit(rows, range(len(STRATEGIES)))
        seen = [math.exp(e) - 1 for e in rows.errors(gemm, attention)]
    print(f"all: GEMM x{gemm}, attention x{attention}; " + ", ".join(f"{100 * e:+.1f} %" for e in seen))
    if args.write:
        preset = json.loads(PRESET.read_text())
        elementwise = preset["kernels"]["slowdowns"]["elementwise"]
        preset["kernels"] = {
            "kind": "fitted",
            "gpu_families": ["H100", "H800"],
            "slowdowns": {"gemm": gemm, "attention": attention, "elementwise": elementwise, "full_load": True},
            "fit": {
                "rows": len(STRATEGIES),
                "benchmarks": len(by_length),
                "numbers": 2,
                "source": [SOURCE],
                "date": datetime.date.today().isoformat(),
                "error_in_sample": summary(seen),
            },
            "left_out": {**summary(left_out), "benchmarks": by_length},
            "errors": [
                {"kind": "dense", "size": "3B to 20B", "gpu": "H100", "precision": "bf16", **summary(left_out)}
            ],
        }
        PRESET.write_text(json.dumps(preset, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How two sets of committed numbers were found from HBP's printed figures (arXiv 2503.07680).

  python3 -m papers.fits deepspeed [--write]   the slowdowns of the preset `deepspeed`
  python3 -m papers.fits lengths               the shape of the joint fit in hbp.toml

deepspeed: two slowdowns, of GEMM and of attention, by least squares on the logarithms of the seven steps without packing. These
rows say how fast the framework is and nothing of any packing, whose gains are then predicted. The elementwise slowdown stays
FSDP's (of 24 November 2026), since it moves every row as GEMM's does. Each length is held out in its turn: those errors are what
the preset states.

lengths: five numbers for all balance ratios that the paper's two versions print, by a pattern search on plans; nothing is
simulated. The versions print 0.456 and 0.616 for the same setting, so no lengths can meet both.
"""

import argparse
import datetime
import json
import os
import sys
from math import exp, log
from pathlib import Path

from .runner import ROOT, Runner
from .tables import Paper

HBP = Paper(Path(__file__).with_name("hbp.toml"))
PRESET = ROOT / "sim/framework/presets/deepspeed.json"
SOURCE = "https://arxiv.org/abs/2503.07680, strategies of Llama-3.1-8B: one document a sequence, no packing"


def table_of(title):
    return next(table for table in HBP.data["table"] if table["title"].startswith(title))


def fit_slowdowns(run, rows):
    """The slowdowns of GEMM and attention that meet these rows best; a kernel in training is not faster than alone."""
    from scipy.optimize import least_squares

    def errors(logs):
        return [log_error(run, row, *map(exp, logs)) for row in rows]

    found = least_squares(errors, [log(1.3), log(1.1)], bounds=(0, 2), diff_step=0.03, xtol=1e-4)
    return [round(exp(x), 3) for x in found.x]


def log_error(run, row, gemm, attention):
    """ln(simulated / published) of a step without packing."""
    spec = table_of("Strategies")
    framework = {"preset": "deepspeed", "gemm_slowdown": round(gemm, 4), "attention_slowdown": round(attention, 4)}
    return log(HBP.value(run, spec, spec["at"], row["at"], {"framework": framework}) / row["published"])


def summary(errors):
    return {
        "rows": len(errors),
        "mean_abs_error": round(sum(map(abs, errors)) / len(errors), 4),
        "mean_error": round(sum(errors) / len(errors), 4),
        "worst": round(max(errors, key=abs), 4),
    }


def deepspeed(run, write):
    rows, held_out, by_length = table_of("Strategies")["figures"], [], {}
    for length in dict.fromkeys(row["what"].split(",")[0] for row in rows):
        own = [row for row in rows if row["what"].startswith(f"{length},")]
        slowdowns = fit_slowdowns(run, [row for row in rows if row not in own])
        errors = [exp(log_error(run, row, *slowdowns)) - 1 for row in own]
        print(f"without {length}: GEMM x{slowdowns[0]}, attention x{slowdowns[1]}; its rows " + ", ".join(f"{100 * e:+.1f} %" for e in errors))
        by_length[f"sequences_of_{length}"] = summary(errors)
        held_out += errors
    gemm, attention = fit_slowdowns(run, rows)
    seen = [exp(log_error(run, row, gemm, attention)) - 1 for row in rows]
    print(f"all: GEMM x{gemm}, attention x{attention}; " + ", ".join(f"{100 * e:+.1f} %" for e in seen))
    if write:
        preset = json.loads(PRESET.read_text())
        elementwise = preset["kernels"]["slowdowns"]["elementwise"]
        preset["kernels"] = {
            "kind": "fitted",
            "gpu_families": ["H100", "H800"],
            "slowdowns": {"gemm": gemm, "attention": attention, "elementwise": elementwise, "full_load": True},
            "fit": {"rows": len(rows), "benchmarks": len(by_length), "numbers": 2, "source": [SOURCE], "date": datetime.date.today().isoformat(),
                    "error_in_sample": summary(seen)},
            "left_out": {**summary(held_out), "benchmarks": by_length},
            "errors": [{"kind": "dense", "size": "3B to 20B", "gpu": "H100", "precision": "bf16", **summary(held_out)}],
        }
        PRESET.write_text(json.dumps(preset, indent=1) + "\n")


START = {"sigma": 0.42, "tail": 0.0001, "index": 0, "least": 16, "fall": 0}  # nearly `tulu3-longcite`
STEPS = {"sigma": 0.15, "tail": 0.002, "index": 0.5, "least": 4.0, "fall": 0.3}
LOWEST = {"sigma": 0.2, "tail": 0.0, "index": 0.0, "least": 4.0, "fall": -2.0}


def misfit(run, shape):
    spec, trace = table_of("One joint fit"), dict(HBP.data["setting"]["joint"]["trace"], shape=shape)
    return sum(
        (HBP.value(run, row, spec["at"], row["at"], {"trace": trace}, part) - printed) ** 2
        for row in spec["rows"] for part, printed in zip(row["list"], row["is"][1])
    )


def lengths(run):
    """Moves each number up and down by its step as long as that helps, then halves the steps."""
    best, least, steps = START, misfit(run, START), dict(STEPS)
    while steps["sigma"] >= 0.02:
        before = least
        for name in steps:
            for sign in (1, -1):
                tried = {**best, name: max(LOWEST[name], best[name] + sign * steps[name])}
                if tried != best and (found := misfit(run, tried)) < least:
                    best, least = tried, found
                    break
        print(f"{least:.5f} {best}", flush=True)
        if least > 0.995 * before:
            steps = {name: step / 2 for name, step in steps.items()}


def main():
    parser = argparse.ArgumentParser(prog="papers.fits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("deepspeed", "lengths"))
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--write", action="store_true", help="write the shipped preset")
    args = parser.parse_args()
    with open(os.devnull, "w", encoding="ascii") as nowhere:
        run = Runner(args.program, nowhere)
        deepspeed(run, args.write) if args.what == "deepspeed" else lengths(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())

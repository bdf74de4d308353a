#!/usr/bin/env python3
"""Fits the slowdowns of each framework family to published steps and says how wrong they are on groups left out.

A slowdown is how much slower a kind of kernel runs in a long training than alone: one for GEMM, attention and
elementwise kernels of a family, never of a row or model. Least squares on logarithms of predicted over published,
beyond 8 % linear (one misprinted row must not bend the rest), with a weak prior on "no slowdown" where the rows do
not say. Only bf16 rows are fitted. Groups that are versions of one benchmark belong together (`stem`); each stem is
left out in its turn, the others are fitted, and the rows left out are predicted: those errors are the result.

  tests/fit_published_steps.py --rows ROWS.csv --models MODELS.csv [--program P] [--write families.json]

Columns as in published_steps.py, whose --families takes what --write wrote.
"""
import argparse
import csv
import json
import math
import statistics
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import published_steps as steps

SLOWDOWNS = ("gemm_slowdown", "attention_slowdown", "elementwise_slowdown")
ROBUST = 0.08  # of a logarithm
PRIOR = 0.5    # standard deviation of a slowdown's logarithm around 0, beside residuals of ROBUST
DIFFERENCE = 0.02
STEPS = 6


def solve(matrix, right):
    """Gaussian elimination with pivoting of a small system."""
    n = len(right)
    rows = [list(matrix[i]) + [right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i])]
    answer = [0.0] * n
    for i in reversed(range(n)):
        answer[i] = (rows[i][n] - sum(rows[i][j] * answer[j] for j in range(i + 1, n))) / rows[i][i]
    return answer


class Family:
    def __init__(self, name, rows, models, program, pool):
        self.name, self.rows, self.models, self.program, self.pool = name, rows, models, program, pool
        self.published = [float(row["step_time_s"]) for row in rows]
        self.known = {}

    def errors(self, theta):
        """ln(predicted / published) of every row; None where a row cannot be simulated."""
        theta = tuple(round(t, 9) for t in theta)
        if theta not in self.known:
            framework = steps.FAMILIES[self.name]["framework"]
            framework.update({key: math.exp(t) for key, t in zip(SLOWDOWNS, theta)})
            predicted = list(self.pool.map(lambda row: steps.predict(self.program, row, self.models)[0], self.rows))
            self.known[theta] = [p and math.log(p / q) for p, q in zip(predicted, self.published)]
        return self.known[theta]

    def cost(self, theta, seen):
        errors = self.errors(theta)
        data = sum(2 * ROBUST**2 * (math.sqrt(1 + (errors[i] / ROBUST) ** 2) - 1) for i in seen)
        return data + sum((ROBUST * t / PRIOR) ** 2 for t in theta)

    def fit(self, seen, start):
        """Gauss-Newton with halving; slowdowns stay at 1 or above."""
        theta = list(start)
        for _ in range(STEPS):
            here = self.errors(theta)
            slopes = []
            for k in range(len(theta)):
                moved = [t + (DIFFERENCE if j == k else 0) for j, t in enumerate(theta)]
                there = self.errors(moved)
                slopes.append([there[i] - here[i] if i in seen else 0 for i in range(len(here))])
            weight = {i: 1 / math.sqrt(1 + (here[i] / ROBUST) ** 2) for i in seen}
            scale = (ROBUST / PRIOR) ** 2
            matrix = [[sum(weight[i] * a[i] * b[i] for i in seen) / DIFFERENCE**2 + (scale if a is b else 0)
                       for b in slopes] for a in slopes]
            right = [-sum(weight[i] * a[i] * here[i] for i in seen) / DIFFERENCE - scale * theta[k]
                     for k, a in enumerate(slopes)]
            step = solve(matrix, right)
            for halving in range(5):
                near = [max(0.0, t + s / 2**halving) for t, s in zip(theta, step)]
                if self.cost(near, seen) < self.cost(theta, seen):
                    break
            else:
                break
            theta = near
        return theta


def stem_of(row):
    return steps.stem(row["group"])


def print_errors(title, errors):
    worst = max(errors, key=abs)
    print(f"{title:44} {len(errors):4d} {100 * statistics.mean(map(abs, errors)):12.1f} "
          f"{100 * statistics.mean(errors):11.1f} {100 * worst:8.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--program", default=str(steps.ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--write", help="write the families with their fitted slowdowns to this file")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    models, rows, _ = steps.read_rows(args.rows, args.models)
    rows = [row for row in rows if row["precision"] == "bf16"]
    left_out = []
    print(f"{'left out, predicted by the others':44} {'rows':>4} {'mean |err| %':>12} {'mean err %':>11} {'worst %':>8}")
    with ThreadPoolExecutor(args.jobs) as pool:
        for name in steps.FAMILIES:
            family = Family(name, [row for row in rows if steps.family_of(row) == name], models, args.program, pool)
            usable = [i for i, error in enumerate(family.errors([0.0] * len(SLOWDOWNS))) if error is not None]
            best = family.fit(usable, [math.log(1.1)] * len(SLOWDOWNS))
            stems = defaultdict(list)
            for i in usable:
                stems[stem_of(family.rows[i])].append(i)
            of_family = []
            for stem, members in sorted(stems.items()):
                others = [i for i in usable if i not in members]
                theta = family.fit(others, best)
                errors = [math.expm1(family.errors(theta)[i]) for i in members]
                print_errors(f"{name}: {stem}", errors)
                of_family += errors
            print_errors(f"{name}, all", of_family)
            left_out += of_family
            fitted = {key: round(math.exp(t), 3) for key, t in zip(SLOWDOWNS, best)}
            steps.FAMILIES[name]["framework"].update(fitted)
            print(f"  fitted to all of them: {fitted}")
    print_errors("all", left_out)
    if args.write:
        Path(args.write).write_text(json.dumps(steps.FAMILIES, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

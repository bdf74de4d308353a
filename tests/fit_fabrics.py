#!/usr/bin/env python3
"""How far collectives between nodes are off on a fabric that no fit has seen, and how few of its points fix that.

  tests/fit_fabrics.py --data MEASUREMENTS [--program P] [--seeds N]

MEASUREMENTS is a folder with nccl_multi_node.csv and nccl_single_node.csv (columns: docs/reference/formats.md). Each fabric
with enough rows is held out in its turn: the networks of profiler/recipes/h100-sxm.json are fitted to the other fabrics'
rows, and the fabric borrows the one that has most rows of its collectives, at its own NIC's rate. Then so many of its
rows, drawn at random, are given to `equipoise fit --base`, and the rows that were not drawn are predicted. Printed are
the median and the 90th percentile of abs(predicted / measured - 1), each the middle one of all seeds (0, 1, ... N - 1).
Run by hand; the table is in docs/results/profiles.md.
"""
import argparse
import csv
import io
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
POINTS = (0, 1, 3, 10)
LEAST_ROWS = 20
LARGE = 1 << 20  # bytes, above which errors are counted apart


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader()
        table.writerows(rows)
    return path


def quantile(values, share):
    """Linear between order statistics, as in profiler/fit/hold_out.cpp."""
    values = sorted(values)
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


class Study:
    def __init__(self, args, scratch):
        self.program, self.scratch, self.seeds = args.program, scratch, args.seeds
        self.recipe = json.loads((ROOT / "profiler/recipes/h100-sxm.json").read_text())
        self.single = Path(args.data) / "nccl_single_node.csv"
        self.rows = read(Path(args.data) / "nccl_multi_node.csv")

    def run(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def fabrics(self):
        """(name, its part of the network's name, NIC rate, rows) of those with a network of their own."""
        for name, network in self.recipe["collective"]["networks"].items():
            part = network.get("matches")
            rows = [row for row in self.rows if part and part in row["inter_node_network"] and "(" not in row["op"]]
            if len(rows) >= LEAST_ROWS:
                yield name, part, network["nic_GBps"], rows

    def base_without(self, part, rows):
        """A profile of collectives that has not seen a fabric, and the network of it that the fabric borrows."""
        others = [row for row in self.rows if part not in row["inter_node_network"]]
        recipe = {key: self.recipe[key] for key in ("schema", "summary", "device")}
        recipe["name"] = "without"
        section = json.loads(json.dumps(self.recipe["collective"]))
        section.pop("exchange")
        ops = Counter(row["op"] for row in rows)
        fitness = {}
        for name in list(section["networks"]):
            network = section["networks"][name]
            network.pop("all_to_all", None)
            wanted = network["fit"]
            parts = wanted["inter_node_network_has"]
            parts = [parts] if isinstance(parts, str) else parts
            of_op = wanted.get("op")
            mine = [row for row in others if any(p in row["inter_node_network"] for p in parts)
                    and (of_op is None or row["op"] in of_op) and "(" not in row["op"]]
            if len(mine) < 4:
                del section["networks"][name]
            else:  # the default wins ties
                fitness[name] = (sum(row["op"] in ops for row in mine), name == section["default_network"])
        borrowed = max(fitness, key=fitness.get)
        section["default_network"] = borrowed
        recipe["collective"] = section
        path = self.scratch / "recipe.json"
        path.write_text(json.dumps(recipe))
        table = write(self.scratch / "others.csv", others)
        out = self.scratch / "without.json"
        self.run("fit", "--samples", self.single, table, "--recipe", path, "--out", out)
        return out, borrowed

    def errors(self, profile, network, nic, rows):
        """(bytes, abs error) of every row."""
        table = write(self.scratch / "rows.csv", rows)
        text = self.run("predict", "--profile", profile, "--network", network, "--nic-GBps", nic, "--rows", table)
        return [(float(row["size_bytes"]), abs(float(row["error"]))) for row in csv.DictReader(io.StringIO(text))]

    def calibrated(self, base, network, nic, rows, drawn):
        if not drawn:
            return self.errors(base, network, nic, rows)
        points = write(self.scratch / "points.csv", [rows[i] for i in drawn])
        out = self.scratch / "calibrated.json"
        self.run("fit", "--samples", points, "--base", base, "--base-network", network, "--nic-GBps", nic, "--out", out)
        rest = [row for i, row in enumerate(rows) if i not in drawn]
        return self.errors(out, "measured", nic, rest)

    def cell(self, errors_of_seeds, large):
        chosen = [[e for size, e in errors if not large or size > LARGE] for errors in errors_of_seeds]
        chosen = [errors for errors in chosen if errors]
        middle = [statistics.median(quantile(errors, share) for errors in chosen) for share in (0.5, 0.9)]
        return tuple(middle)

    def fabric(self, name, part, nic, rows):
        base, borrowed = self.base_without(part, rows)
        cells = {}
        for count in POINTS:
            draws = [random.Random(f"{name}/{count}/{seed}").sample(range(len(rows)), count)
                     for seed in range(self.seeds if count else 1)]
            errors = [self.calibrated(base, borrowed, nic, rows, draw) for draw in draws]
            cells[count] = [self.cell(errors, large) for large in (False, True)]
        return borrowed, cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/equipoise"))
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        study = Study(args, Path(scratch))
        print("| fabric (rows) | borrowed from | bytes | " + " | ".join(f"{n} points" for n in POINTS) + " |")
        print("| --- " * (3 + len(POINTS)) + "|")
        unseen = []
        for name, part, nic, rows in study.fabrics():
            borrowed, cells = study.fabric(name, part, nic, rows)
            unseen.append(cells[0][0][0])
            for large in (0, 1):
                text = " | ".join(f"{100 * cells[n][large][0]:.0f}% / {100 * cells[n][large][1]:.0f}%" for n in POINTS)
                size = "above 1 MiB" if large else "all"
                print(f"| {name} ({len(rows)}) | {borrowed} | {size} | {text} |", flush=True)
        print(f"\nmedians of fabrics borrowed as they are: {min(unseen):.4f} to {max(unseen):.4f}; {args.seeds} seeds")


if __name__ == "__main__":
    sys.exit(main())

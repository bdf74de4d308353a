#!/usr/bin/env python3
"""Does a policy's gain survive that documents cost something else than it was told?

    python3 tests/jitter_of_documents.py PROGRAM STUDY [--spread 0.05] [--seeds 5]

Runs the study, which plans every row on the documents' lengths as they are. Then every document gets a length of its own,
drawn around its own with that relative standard deviation, the same for all rows, and the plans are simulated as they
stand: what runs together, in which order, on which lanes and ranks was chosen for other lengths. Prints each row's speed
over the first, a token, with the lengths as told and over the seeds. Attention is quadratic, so a length that is 5 % off is a cost
that is 5 to 10 % off.

A slice runs as a document of its own (it attends to itself only); plans of dependent chunks are refused. Models, profiles
and frameworks of the study are named, not files next to it."""
import argparse
import csv
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile


ROW_KEYS = ("shard", "schedule", "block", "top_p", "tolerance", "remainder", "pad", "tile", "recompute", "context_comm")


def simulated(program, study, out, options=()):
    """summary.json of a study."""
    command = [program, "study", str(study), "--quiet", "--ignore-memory", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{study}: {done.stderr.strip()}")
    return json.loads((out / "summary.json").read_text())


def lane_with_lengths(lane, factor_of, lengths):
    """The lane with its documents' lengths changed; they are appended to `lengths`, whose positions they become."""
    micro_batches = []
    for micro_batch in lane["micro_batches"]:
        if "chunk" in micro_batch:
            sys.exit("plans of dependent chunks cannot be changed")
        slices = []
        for document, begin, end in micro_batch["slices"]:
            lengths.append(max(1, round((end - begin) * factor_of(document))))
            slices.append([len(lengths) - 1, 0, lengths[-1]])
        kept = {key: micro_batch[key] for key in ("placement", "recompute_layers") if key in micro_batch}
        micro_batches.append({"slices": slices, **kept})
    return {**lane, "micro_batches": micro_batches}


def with_lengths(plan, factor_of):
    """The plan's full steps with each length times factor_of(document), all lengths in the order in which they run, and
    how many documents come a step. A loader brings equally many with each step: those of later steps come early, and
    what fills the last ones runs in a step of its own behind them, of the shape of the last."""
    lengths, steps, after = [], [], []
    for step in plan["steps"]:
        if not step["tail"]:
            lanes = [lane_with_lengths(lane, factor_of, lengths) for lane in step["lanes"]]
            steps.append({"step": len(steps), "tail": False, "lanes": lanes})
            after.append(len(lengths))
    shape = [len(lane["micro_batches"]) for lane in steps[-1]["lanes"]]
    a_step = max(-(-done // (number + 1)) for number, done in enumerate(after))
    a_step = max(a_step, -(-(after[-1] + sum(shape)) // (len(steps) + 1)))
    lengths += [256] * (a_step * (len(steps) + 1) - after[-1])
    whole = [[d, 0, n] for d, n in enumerate(lengths)]
    for number, step in enumerate(steps):
        step["carried"] = whole[after[number] : a_step * (number + 1)]
    rest = iter(whole[after[-1] + i :: sum(shape)] for i in range(sum(shape)))
    lanes = [{**lane, "micro_batches": [{"slices": next(rest)} for _ in range(count)]}
             for lane, count in zip(steps[-1]["lanes"], shape)]
    steps.append({"step": len(steps), "tail": True, "carried": [], "lanes": lanes})
    return {"schema": "equipoise.plan/1", "policy": plan["policy"], "steps": steps}, lengths, a_step


def seconds_a_token(steps_csv, label, steps):
    """The times of the row's first steps."""
    lines = csv.DictReader(io.StringIO(steps_csv.read_text()))
    rows = [line for line in lines if line["policy"] == label and line["tail"] == "0"][:steps]
    return sum(float(row["step_seconds"]) for row in rows) / sum(float(row["tokens"]) for row in rows)


def as_it_turns_out(program, study, keys, plan, factor_of, folder):
    """Seconds per token of the plan's full steps on other lengths. `keys`: of the row, in addition to its policy's own."""
    made, lengths, a_step = with_lengths(plan, factor_of)
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(made))
    (folder / "lengths.txt").write_text("".join(f"{n}\n" for n in lengths))
    own = dict(study, trace={"file": "lengths.txt"}, batch={"documents_per_step": a_step, "steps": len(made["steps"])},
               policies=[{"name": "plan", "file": "plan.json", "label": "plan", **keys}])
    own.pop("baseline", None)
    (folder / "study.json").write_text(json.dumps(own))
    result = simulated(program, folder / "study.json", folder / "out")["policies"][0]
    if result["status"] not in ("ok", "oom"):  # times count where a longer document does not fit, too
        sys.exit(f"{plan['name']}: {result['status']}: {result['reason']}")
    return seconds_a_token(folder / "out" / "steps.csv", "plan", len(made["steps"]) - 1)


def factors_of(seed, spread):
    """What a document's length is multiplied by; seed -1: one."""
    return lambda document: 1 if seed < 0 else max(0.1, 1 + random.Random(f"{seed} {document}").gauss(0, spread))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("study", type=pathlib.Path)
    parser.add_argument("--spread", type=float, default=0.05, help="standard deviation of a length, as a share of it")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    if given.seeds < 1 or given.spread < 0:
        parser.error("expected --seeds from 1 and --spread from 0")
    if not given.study.is_file():
        parser.error(f"{given.study}: no such file")
    try:
        study = json.loads(given.study.read_text())
    except ValueError as error:
        parser.error(f"{given.study}: {error}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows = simulated(given.program, given.study, folder / "planned")["policies"]
        plans = json.loads((folder / "planned" / "plan.json").read_text())["plans"]
        print(f"{'row':<32} {'as told':>8}   with lengths {given.spread:.0%} off, {given.seeds} seeds")
        base = []
        for number, (row, plan, entry) in enumerate(zip(rows, plans, study["policies"])):
            keys = {key: row[key] for key in ("shard", "schedule") if key in row}
            keys.update((key, entry[key]) for key in ROW_KEYS if isinstance(entry, dict) and key in entry)
            found = [as_it_turns_out(given.program, study, keys, plan, factors_of(seed, given.spread), folder / f"{number} {seed}")
                     for seed in range(-1, given.seeds)]
            planned = seconds_a_token(folder / "planned" / "steps.csv", row["label"], None)
            if abs(found[0] / planned - 1) > 1e-3:
                sys.exit(f"{row['label']}: {found[0]:.6g} s a token with the lengths as told, {planned:.6g} in the study itself: a key of "
                         "the row is not carried over")
            base = base or found
            gains = [b / f for b, f in zip(base, found)]
            drawn = gains[1:]
            print(f"{row['label']:<32} {gains[0]:>8.3f}   {sum(drawn) / len(drawn):.3f} ({min(drawn):.3f} to {max(drawn):.3f})")


main()

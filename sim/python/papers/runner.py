"""Runs studies with the program and hands out their figures; a study that was run once is not run again."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STUDIES = ROOT / "traces/studies"


class Runner:
    """`equipoise study` on shipped studies, with keys overridden (--set) or rows of one's own."""

    def __init__(self, program, log=sys.stderr):
        self.program = program
        self.log = log
        self.done = {}
        self.folder = tempfile.TemporaryDirectory()

    def lengths(self, distribution, documents, seed=0):
        """Document lengths of a named distribution."""
        name = f"{distribution}-{documents}-{seed}"
        if name not in self.done:
            path = Path(self.folder.name) / f"{name}.txt"
            self._call(
                [
                    self.program,
                    "trace",
                    "synth",
                    "--distribution",
                    distribution,
                    "--documents",
                    str(documents),
                    "--seed",
                    str(seed),
                    "--out",
                    str(path),
                ]
            )
            lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
            self.done[name] = [int(line) for line in lines if line]
        return self.done[name]

    def trace_of(self, name, lengths):
        """The `trace` of a study that has these documents."""
        path = Path(self.folder.name) / f"{name}.own.txt"
        path.write_text("".join(f"{length}\n" for length in lengths))
        return {"file": str(path)}

    def _call(self, command):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{ran.stderr}")
        return ran.stdout

    def summary(self, study, policies=None, **keys):
        """summary.json of a shipped study. `keys`: dots as two underscores, parallel__virtual_pipeline=4."""
        assignments = {key.replace("__", "."): value for key, value in keys.items()}
        name = json.dumps([study, policies, assignments], sort_keys=True)
        if name not in self.done:
            self.done[name] = self._run(study, policies, assignments)
        return self.done[name]

    def _run(self, study, policies, assignments):
        path = STUDIES / f"{study}.json"
        if policies is not None:
            content = json.loads(path.read_text())
            if "file" in content["trace"]:
                content["trace"]["file"] = str(STUDIES / content["trace"]["file"])
            content["policies"] = policies
            content["baseline"] = label_of(policies[0])
            path = Path(self.folder.name) / f"{study}-{len(self.done)}.json"
            path.write_text(json.dumps(content))
        command = [self.program, "study", str(path), "--format", "json", "--quiet", "--ignore-memory"]
        for key, value in assignments.items():
            command += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        print(
            f"  {study} {' '.join(f'{k}={v}' for k, v in assignments.items())}"[:160],
            file=self.log,
            flush=True,
        )
        summary = json.loads(self._call(command))
        for line in reasons(summary):
            print(f"    {line}", file=self.log)
        return summary


def label_of(policy):
    return policy if isinstance(policy, str) else policy.get("label", policy["name"])


def row(summary, label):
    for policy in summary["policies"]:
        if policy["label"] == label:
            return policy
    raise KeyError(f"{label}: not among {[p['label'] for p in summary['policies']]}")


def status(summary, label):
    return row(summary, label)["status"]


def metric(summary, label, name):
    """A metric of a row; None where it did not run."""
    return row(summary, label)["metrics"].get(name)


def seconds_per_token(summary, label):
    """None where the row did not run."""
    found = row(summary, label)["metrics"]
    return found["total_seconds"] / found["total_tokens"] if found["total_tokens"] else None


def speedup(summary, label, against):
    """Of a row over another one of the same study; None where one of them did not run."""
    own, other = seconds_per_token(summary, label), seconds_per_token(summary, against)
    return other / own if own and other else None


def reasons(summary):
    """Why rows did not run, a line each."""
    return [f"{p['label']}: {p['status']}: {p['reason']}" for p in summary["policies"] if p["status"] != "ok"]

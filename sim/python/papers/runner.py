"""Runs studies with the program and returns their figures; a study that has run does not run again."""

import copy
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from .perfetto import peaks

ROOT = Path(__file__).resolve().parents[3]
STUDIES = ROOT / "traces/studies"


class Runner:
    """`equipoise study` on shipped studies, with keys overridden (--set) or rows of one's own.

    Lengths are drawn with the runner's seed, unless a trace names another; `at` is the same runner with another seed. Its
    threads share what was run.
    """

    def __init__(self, program, log=sys.stderr, keep=None, ignore_memory=True):
        self.program = program
        self.keep = Path(keep) if keep else None  # where finished runs are kept, by the program's content
        self.log = log
        self.ignore_memory = ignore_memory  # also times rows that do not fit
        self.seed = 0
        self.done = {}
        self.lock = threading.Lock()
        self.folder = tempfile.TemporaryDirectory()
        if self.keep:
            self.keep.mkdir(parents=True, exist_ok=True)
            self.identity = digest(Path(program).read_bytes())

    def at(self, seed):
        other = copy.copy(self)
        other.seed = seed
        return other

    def once(self, name, make):
        """The result of `make`; a second caller with this name waits for the first."""
        with self.lock:
            known = self.done.get(name)
            mine = Future() if known is None else None
            if mine:
                self.done[name] = mine
        if mine:
            try:
                mine.set_result(make())
            except BaseException as error:
                mine.set_exception(error)
                raise
        return (mine or known).result()

    def lengths(self, distribution, documents):
        """Document lengths of a named distribution."""
        name = f"{distribution}-{documents}-{self.seed}"
        return self.once(name, lambda: self._draw(name, distribution, documents))

    def _draw(self, name, distribution, documents):
        path = Path(self.folder.name) / f"{name}.txt"
        options = {"distribution": distribution, "documents": documents, "seed": self.seed, "out": path}
        self.call("trace", "synth", *(text for key, value in options.items() for text in (f"--{key}", str(value))))
        lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
        return [int(line) for line in lines if line]

    def trace_of(self, lengths):
        """The `trace` of a study with these documents."""
        text = "".join(f"{length}\n" for length in lengths)
        path = Path(self.folder.name) / f"{digest(text.encode())}.txt"
        self.once(str(path), lambda: path.write_text(text))
        return {"file": str(path)}

    def predicted(self, header, rows):
        """Milliseconds of each row's kernel by the profile."""
        text = "".join(",".join(map(str, row)) + "\n" for row in (header, *rows))
        path = Path(self.folder.name) / f"{digest(text.encode())}.csv"
        return self.once(str(path), lambda: self._predict(path, text))

    def _predict(self, path, text):
        path.write_text(text)
        answer = self.call("predict", "--profile", "h100-sxm", "--rows", str(path))
        return [float(row["predicted_ms"]) for row in csv.DictReader(answer.splitlines())]

    def pack(self, *arguments):
        """The metrics of a plan."""
        name = json.dumps(["pack", *arguments])
        return self.once(
            name,
            lambda: self.kept(name, lambda: json.loads(self.call("pack", *arguments, "--format", "json"))["metrics"]),
        )

    def call(self, *command):
        """What the program prints."""
        ran = subprocess.run([self.program, *command], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise RuntimeError(f"{self.program} {' '.join(command)}\n{ran.stderr}")
        return ran.stdout

    def kept(self, name, make):
        """The result of `make`, or that of an earlier run in its folder. Temporary files are named by their content."""
        if not self.keep:
            return make()
        name = name.replace(self.folder.name, "")
        path = self.keep / f"{digest((self.identity + name).encode())}.json"
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}.part")
            part.write_text(json.dumps([name, make()]))
            part.rename(path)
        return json.loads(path.read_text())[1]

    def summary(self, study, policies=None, keys=()):
        """summary.json of a shipped study with other rows and keys ("parallel.context": 4)."""
        assignments = dict(keys)
        trace = assignments.get("trace", json.loads((STUDIES / f"{study}.json").read_text())["trace"])
        if "distribution" in trace and ("trace" not in assignments or "seed" not in trace):
            assignments["trace"] = {**trace, "seed": self.seed}
        name = json.dumps([study, policies, assignments, self.ignore_memory], sort_keys=True)
        return self.once(name, lambda: self.kept(name, lambda: self._run(study, policies, assignments)))

    def peaks_of_ranks(self, study, policies, ranks, keys):
        """Most memory of each CP rank of the first lane and stage in the first step, in bytes, by label."""
        assignments = dict(keys)
        name = json.dumps(["peaks", study, policies, ranks, assignments], sort_keys=True)
        return self.once(name, lambda: self.kept(name, lambda: self._peaks(study, policies, ranks, assignments)))

    def _peaks(self, study, policies, ranks, assignments):
        with tempfile.TemporaryDirectory(dir=self.folder.name) as out:
            options = {"out": out, "timeline-steps": 1, "timeline-counters": "memory"}
            options["timeline-ranks"] = ",".join(map(str, range(ranks)))
            command = self._command(study, policies, assignments)
            self.call(*command, *(text for key, value in options.items() for text in (f"--{key}", str(value))))
            found = {}
            for policy in policies:
                timeline = Path(out) / "timeline" / f"{label_of(policy)}.pftrace"
                found[label_of(policy)] = list(peaks(timeline.read_bytes(), "memory").values())
        return found

    def _command(self, study, policies, assignments):
        """`equipoise study` with these rows and keys."""
        path = STUDIES / f"{study}.json"
        if policies is not None:
            content = json.loads(path.read_text())
            if "file" in content["trace"]:
                content["trace"]["file"] = str(STUDIES / content["trace"]["file"])
            content["policies"] = policies
            content["baseline"] = label_of(policies[0])
            own = json.dumps(content)
            path = Path(self.folder.name) / f"{study}-{digest(own.encode())}.json"
            self.once(str(path), lambda: path.write_text(own))
        command = ["study", str(path), "--format", "json", "--quiet", "--jobs", "1"]
        command += ["--ignore-memory"] if self.ignore_memory else []
        for key, value in assignments.items():
            command += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        return command

    def _run(self, study, policies, assignments):
        command = self._command(study, policies, assignments)
        began = time.monotonic()
        summary = json.loads(self.call(*command))
        keys = " ".join(f"{k}={v}" for k, v in assignments.items())
        print(f"  {time.monotonic() - began:5.1f} s  {study} {keys}"[:160], file=self.log, flush=True)
        for line in reasons(summary):
            print(f"    {line}", file=self.log)
        return summary


def digest(content):
    return hashlib.sha256(content).hexdigest()[:24]


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
    """A metric of a row; None if it did not run."""
    return row(summary, label)["metrics"].get(name)


def seconds_per_token(summary, label):
    """None if the row did not run."""
    found = row(summary, label)["metrics"]
    return found["total_seconds"] / found["total_tokens"] if found["total_tokens"] else None


def speedup(summary, label, against):
    """The speed-up of a row over another one of the same study; None if one of them did not run."""
    own, other = seconds_per_token(summary, label), seconds_per_token(summary, against)
    return other / own if own and other else None


def reasons(summary):
    """A line for each row that did not run, with the reason."""
    return [f"{p['label']}: {p['status']}: {p['reason']}" for p in summary["policies"] if p["status"] != "ok"]

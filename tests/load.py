#!/usr/bin/env python3
"""A day of use: load.py PROGRAM [--commands 2880] [--minutes 60] [--seed 1] [--hostile]

Two users on one folder give commands as a day has half minutes, drawn from a seed: random studies, sweeps and searches into the
same few output folders, plans, verdicts, pages. Some are killed, some find the disk full, little memory, or a clock that has
jumped by years. Held for each:

- it ends with 0, 1 (a verdict), 2 (one line that says why) or 130 (interrupted), and with a signal only where it was sent one;
- the same command prints the same again, but for what is measured;
- a search or sweep that was killed resumes to the bytes of one that was not;
- a temporary folder is empty once the command has ended by itself, an output folder has no half-written file;
- the first study of the day needs no more memory and time at its end.

With --hostile, what the users give is wrong instead: studies and traces with changed bytes, values outside of the schema's, forged
results, inputs that change before a search is resumed, results written over their inputs. Held in addition:

- a forged number of a result is never confirmed, and old scores are never ranked with new ones;
- no file that a command reads is changed by it;
- both fidelities take the same time to the picosecond, and more memory makes no row slower.

Prints what was done and what broke; 1: something did."""
import argparse
import collections
import gzip
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

FOLDERS = ("a", "b", "c")
MEASURED = re.compile(r"pack.ms|measured|seconds of|queue_emptied")
POLICIES = ("plain-4d", "fixed-4d", "wlb-llm", "ffd", "lpt", "karmarkar-karp", "hbp", "skrull", "gds", "chunkflow", "flexsp",
            "hybrid-cp", "dynamic-cp", "padded", "sorted", "random", "sequence-slices", "balanced-fifo")
REFERENCE = {
    "trace": {"distribution": "wlb-128k", "seed": 3}, "model": "wlb-550m",
    "parallel": {"tensor": 2, "context": 2, "pipeline": 2, "recompute": "none"},
    "batch": {"context_window": "16K", "sequences_per_step": 64, "steps": 100},
    "policies": ["plain-4d", {"name": "wlb", "queues": 2, "shard": "adaptive"}], "baseline": "plain-4d",
}


def random_study(draw):
    window = draw.choice([4, 8, 16, 32])
    parallel = {key: draw.choice([1, 1, 2, 4]) for key in ("tensor", "context", "pipeline", "data")}
    parallel["zero"] = draw.choice([0, 1, 1, 2, 3])
    parallel["recompute"] = draw.choice(["none", "full", "auto", "selective"])
    parallel["context_comm"] = draw.choice(["all-gather", "ring", "ulysses", "group-cast"])
    return {
        "trace": {"distribution": draw.choice(["wlb-128k", "lmsys-chat-1m", "wikipedia", "chatqa2-long-sft"]), "seed": draw.randrange(9)},
        "model": draw.choice(["wlb-550m", "qwen2.5-0.5b", "llama2-7b"]),
        "cluster": {"profile": draw.choice(["h100-sxm", "h200-sxm", "a100-sxm"])}, "parallel": parallel,
        "batch": {"context_window": f"{window}K", "sequences_per_step": draw.choice([2, 4, 8]) * parallel["data"],
                  "steps": draw.choice([1, 2, 4, 8])},
        "policies": draw.sample(POLICIES, draw.choice([1, 2, 3])),
    }


class Command:
    """Words after the program's name, the output folder that is written, and whether it can be resumed."""

    def __init__(self, *words, out=None, resumes=False):
        self.words, self.out, self.resumes = [str(word) for word in words], out, resumes


def study_command(draw, inputs, outputs):
    options = draw.choice([[], ["--verify"], ["--fidelity", "op"], ["--fidelity", "op", "--contention"],
                           ["--fidelity", "op", "--jitter", "0.05", "--jitter-seed", draw.randrange(9)]])
    if draw.random() < 0.5:
        return Command("study", inputs, *options, "--format", draw.choice(["table", "json", "csv"]))
    return Command("study", inputs, *options, "--out", outputs, "--timeline-steps", draw.choice([0, 1]), out=outputs)


def sweep_command(draw, inputs, outputs):
    values = draw.choice(["parallel.context=1,2,4", "batch.context_window=8K,16K", "parallel.pipeline=1,2,4"])
    return Command("study", inputs, "--sweep", values, "--out", outputs, "--quiet", "--timeline-steps", 0, out=outputs, resumes=True)


def tune_command(draw, inputs, outputs):
    return Command("tune", inputs, "--budget", draw.choice([10, 40]), "--out", outputs, "--quiet", out=outputs, resumes=True)


def plan_command(draw, inputs, _):
    policy = draw.choice(["plain", "wlb", "ffd", "lpt", "hbp", "skrull", "chunkflow", "flexsp"])
    return draw.choice([
        Command("pack", "wlb-128k", "--policy", policy, "--lanes", draw.choice([1, 4]), "--steps", 5, "--context-window", "32K"),
        Command("shard", "--lengths", ",".join(str(draw.randrange(1, 9000)) for _ in range(5)), "--cp", draw.choice([2, 3, 8]),
                "--policy", draw.choice(["per-sequence", "per-document", "adaptive", "heap-dispatch"])),
        Command("schedule", "--schedule", draw.choice(["1f1b", "gpipe", "zb-h1", "dualpipe", "seq1f1b"]),
                "--stages", draw.choice([2, 4, 7]), "--lengths", ",".join(str(draw.randrange(1, 9)) for _ in range(8))),
        Command("trace", "info", draw.choice(["wikipedia", "debian-code", "no-such-trace"])),
    ])


def word_command(draw, inputs, outputs):
    return draw.choice([
        Command("list", draw.choice(["policies", "schedules", "models", "profiles", "frameworks", "traces", "schema"])),
        Command("explain", draw.choice(["parallel.context", "speedup", "wlb", "nonsense"])),
        Command("profiles", "show", draw.choice(["h100-sxm", "a100-sxm", "none"])),
        Command("export", inputs, "--for", draw.choice(["megatron", "nemo", "torchtitan", "slurm"])),
        Command("report", outputs), Command("verify", pathlib.Path(outputs) / "summary.json"),
        Command("study", inputs, "--set", draw.choice(["parallel.context=0", "batch.steps=x", "nonsense=1", "model=none"])),
    ])


KINDS = ((study_command, 5), (sweep_command, 2), (tune_command, 1), (plan_command, 4), (word_command, 3))
FAULTS = ("none",) * 12 + ("kill", "kill", "interrupt", "terminate", "full disk", "little memory", "clock")


# ---- Hostile inputs

VALUES = ("0", "-1", "1", "0.5", "2147483648", "9223372036854775807", "18446744073709551616", "1e308", "1e-320", "nan", "true", "null",
          "[]", "{}", '""', '"x"', '"\\u0000"', '"\\ud800"', "[[1]]", '{"a": 1}')


def mutated(draw, content):
    """A few bytes are lost, doubled or others, or a number is another."""
    content = bytearray(content)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(content) + 1)
        kind = draw.randrange(5)
        if kind == 0:
            content[at:at + draw.randrange(1, 9)] = b""
        elif kind == 1:
            content[at:at] = bytes(draw.randrange(256) for _ in range(draw.randrange(1, 4)))
        elif kind == 2:
            content[at:at] = content[at:at + draw.randrange(1, 40)]
        elif numbers := list(re.finditer(rb"[0-9]+", content)):
            place = draw.choice(numbers)
            content[place.start():place.end()] = draw.choice(VALUES).encode()
    return bytes(content)


def keys_of(schema, path=""):
    """The names of all keys in a JSON schema, with dots."""
    for form in schema.get("anyOf", []):
        yield from keys_of(form, path)
    for key, value in schema.get("properties", {}).items():
        yield path + key
        yield from keys_of(value, f"{path}{key}.")


class Hostile:
    """One wrong input each; `day` holds the laws of single commands."""

    def __init__(self, day):
        self.day = day
        self.keys = sorted(set(keys_of(json.loads(subprocess.check_output([day.program, "list", "schema"], text=True)))))
        self.kinds = (self.changed_study, self.changed_trace, self.value, self.value, self.forged, self.stale, self.overwritten,
                      self.fidelities, self.memory)

    def use(self, draw):
        with tempfile.TemporaryDirectory(dir=self.day.folder) as folder:
            folder = pathlib.Path(folder)
            study = random_study(draw)
            study["batch"]["steps"] = min(2, study["batch"]["steps"])
            (folder / "study.json").write_text(json.dumps(study))
            draw.choice(self.kinds)(draw, folder)

    def run(self, *words):
        command = Command(*words)
        return (command, *self.day.run(command))

    def changed_study(self, draw, folder):
        path = folder / "study.json"
        path.write_bytes(mutated(draw, path.read_bytes()))
        self.run("study", path, "--quiet", "--max-memory-GB", 1)

    def changed_trace(self, draw, folder):
        lengths = [draw.randrange(1, 5000) for _ in range(draw.randrange(1, 40))]
        name, content = draw.choice([
            ("t.txt", "\n".join(map(str, lengths))), ("t.csv", "length\n" + "\n".join(map(str, lengths))),
            ("t.jsonl", "\n".join(json.dumps({"num_tokens": length}) for length in lengths))])
        content = mutated(draw, content.encode())
        if draw.random() < 0.3:
            name, content = name + ".gz", mutated(draw, gzip.compress(content))
        (folder / name).write_bytes(content)
        self.run("trace", "info", folder / name)

    def value(self, draw, folder):
        self.run("study", folder / "study.json", "--set", f"{draw.choice(self.keys)}={draw.choice(VALUES)}", "--quiet", "--max-memory-GB", 1)

    def forged(self, draw, folder):
        """A result with one changed number."""
        if self.run("study", folder / "study.json", "--out", folder / "out", "--timeline-steps", 0, "--quiet")[1] != 0:
            return
        path = folder / "out/summary.json"
        text = path.read_text()
        numbers = [place for place in re.finditer(r'(?<=: )-?[0-9][0-9.e+-]*', text) if "pack_ms" not in text[place.start() - 20:place.start()]]
        place = draw.choice(numbers)
        path.write_text(f"{text[:place.start()]}{float(place.group()) * 1.5 + 1}{text[place.end():]}")
        command, status, out, error = self.run("verify", path)
        if status == 0:
            self.day.breaks(command, f"a forged number is confirmed: {text[place.start() - 60:place.end()]!r}", out + error)

    def stale(self, draw, folder):
        """A sweep that is taken up after its documents have changed."""
        trace = folder / "lengths.txt"
        trace.write_text("\n".join(str(draw.randrange(1, 4000)) for _ in range(4000)))
        study = json.loads((folder / "study.json").read_text())
        study.update(trace={"file": str(trace), "repeat": True}, policies=["plain", "lpt"])
        (folder / "study.json").write_text(json.dumps(study))
        words = draw.choice([("study", folder / "study.json", "--sweep", "batch.steps=1,2", "--timeline-steps", 0),
                             ("tune", folder / "study.json", "--budget", 5)])
        form = ("--quiet", "--format", "csv")
        if self.run(*words, "--out", folder / "out", *form)[1] != 0:
            return
        trace.write_text("\n".join(str(draw.randrange(1, 4000)) for _ in range(4000)))
        command, status, out, _ = self.run(*words, "--out", folder / "out", *form, "--resume")
        if status == 0 and out != self.run(*words, "--out", folder / "fresh", *form)[2]:
            self.day.breaks(command, "old scores are taken up", out)

    def overwritten(self, draw, folder):
        """A result that would be written over its input, by whatever path."""
        trace = folder / "lengths.txt"
        trace.write_text("\n".join(str(draw.randrange(1, 4000)) for _ in range(20)))
        os.symlink(trace, folder / "link.txt")
        os.link(trace, folder / "hard.txt")
        other = draw.choice([trace, folder / "link.txt", folder / "hard.txt", folder / ".." / folder.name / "lengths.txt"])
        study = folder / "out" / "summary.json"  # a study that has the name of a result
        study.parent.mkdir()
        shutil.copy(folder / "study.json", study)
        before = trace.read_bytes(), study.read_bytes()
        command, status, out, error = draw.choice([
            lambda: self.run("trace", "convert", trace, "--out", other), lambda: self.run("trace", "record", trace, "--out", other),
            lambda: self.run("study", study, "--out", draw.choice([study.parent, folder / "out/../out"]), "--quiet")])()
        if (trace.read_bytes(), study.read_bytes()) != before:
            self.day.breaks(command, f"changes its input (exit {status})", out + error)

    def rows(self, *words):
        command, status, out, _ = self.run("study", *words, "--format", "json", "--quiet")
        return command, json.loads(out)["policies"] if status == 0 else []

    def fidelities(self, draw, folder):
        _, stage = self.rows(folder / "study.json")
        command, op = self.rows(folder / "study.json", "--fidelity", "op")
        for one, other in zip(stage, op):
            if one["metrics"].get("step_seconds") != other["metrics"].get("step_seconds"):
                self.day.breaks(command, f"the fidelities of {one['label']} differ")

    def memory(self, draw, folder):
        least = draw.randrange(8, 60)
        before = {}
        for memory_GB in (least, least + draw.randrange(1, 20), 4 * least):
            command, rows = self.rows(folder / "study.json", "--set", f"cluster.memory_GB={memory_GB}")
            for row in rows:
                # L_max of wlb and varlen-solver is all that memory allows, as their paper has it.
                rate = row["metrics"].get("tokens_per_second_per_gpu") or 0
                if rate < before.get(row["label"], 0) and row["policy"] not in ("wlb", "varlen-solver"):
                    self.day.breaks(command, f"{row['label']} is slower than with less memory: {before[row['label']]} and {rate} tokens/s/GPU")
                before[row["label"]] = rate


class Day:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.locks = {name: threading.Lock() for name in FOLDERS}
        self.done, self.broken = collections.Counter(), []
        self.lock = threading.Lock()
        self.clock = shutil.which("faketime")

    def breaks(self, command, law, text=""):
        with self.lock:
            self.broken.append(f"{law}: {' '.join(command.words)}: {text[-300:]}")
            print(f"BROKEN {self.broken[-1]}", flush=True)

    def start(self, command, temporary, fault="none", draw=None):
        """A process of the command with the fault; a killer's thread where it is killed."""
        def limits():
            if fault == "full disk":  # a file ends at so many bytes, as on a disk that is full
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            if fault == "little memory":
                resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))

        words = [self.program, *command.words]
        if fault == "clock" and self.clock:
            words = [self.clock, "-f", f"{draw.choice('+-')}{draw.randrange(1, 3000)}d", *words]
        environment = dict(os.environ, NO_COLOR="1", TMPDIR=str(temporary))
        return subprocess.Popen(words, cwd=self.folder, env=environment, preexec_fn=limits, text=True, errors="replace",
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, command, fault="none", draw=None):
        """Exit status and what was printed; the laws of a single command are held."""
        with tempfile.TemporaryDirectory() as temporary:
            process = self.start(command, temporary, fault, draw)
            sent = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}.get(fault)
            try:
                if sent:
                    time.sleep(draw.expovariate(5))
                    process.send_signal(sent)
                out, error = process.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                process.kill()
                out, error = process.communicate()
                self.breaks(command, f"does not end ({fault})")
            self.holds(command, fault, sent, process.returncode, out, error, os.listdir(temporary))
            return process.returncode, out, error

    def holds(self, command, fault, sent, status, out, error, left):
        with self.lock:
            self.done[f"{command.words[0]}, ended with {status}"] += 1
        allowed = {0, 1, 2}
        if sent == signal.SIGKILL:
            allowed.add(-sent)
        elif sent:
            allowed |= {-sent, 130}
        if status not in allowed:
            self.breaks(command, f"ends with {status} ({fault})", error)
        errors = [line for line in error.splitlines() if line.startswith("error: ")]
        if status == 2 and len(errors) != 1:
            self.breaks(command, f"{len(errors)} lines of errors ({fault})", error)
        if left and status != -signal.SIGKILL:
            self.breaks(command, f"leaves temporary files ({fault})", " ".join(left))

    def use(self, draw):
        """One command of a user: perhaps with a fault, and then what follows from it."""
        make = draw.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
        inputs = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "study.json"
        inputs.write_text(json.dumps(random_study(draw)))
        name = draw.choice(FOLDERS)
        out = os.path.join(self.folder, name)
        command = make(draw, inputs, out + "-cases" if make in (sweep_command, tune_command) else out)
        fault = draw.choice(FAULTS)
        with self.lock:
            self.done[f"fault: {fault}"] += 1
        if command.out and command.resumes:
            with self.locks[name]:
                self.resumes(command, fault, draw)
        else:
            status, out, _ = self.run(command, fault, draw)
            if fault == "none" and status == 0 and not command.out and command.words[0] not in ("verify", "report"):
                again = self.run(command, "clock", draw)[1]
                if unmeasured(out) != unmeasured(again):
                    self.breaks(command, "prints something else again", difference(out, again))
        shutil.rmtree(inputs.parent)

    def resumes(self, command, fault, draw):
        """Cut short and taken up, a search or sweep gives the bytes of one that was not."""
        shutil.rmtree(command.out, ignore_errors=True)
        status = self.run(command, fault, draw)[0]
        taken_up = Command(*command.words, *(["--resume"] if os.path.isdir(command.out) and os.listdir(command.out) else []))
        if status in (0, 2) and fault == "none":
            return
        status = self.run(taken_up)[0]
        whole = Command(*[word.replace(command.out, command.out + "-whole") for word in command.words])
        if self.run(whole)[0] != status:
            self.breaks(command, f"another status where it was cut ({fault})")
        one, other = files(command.out), files(command.out + "-whole")
        if one != other:
            names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
            self.breaks(command, f"other bytes where it was cut ({fault})", " ".join(names))
        shutil.rmtree(command.out + "-whole", ignore_errors=True)


    def ends(self):
        """A study into each folder puts away what killed ones left there; every file is whole."""
        path = pathlib.Path(self.folder) / "reference.json"
        for name in FOLDERS:
            command = Command("study", path, "--quiet", "--out", os.path.join(self.folder, name))
            if self.run(command)[0] != 0:
                self.breaks(command, "the last study of the day")
        for file in pathlib.Path(self.folder).rglob("*"):
            command = Command(file.relative_to(self.folder))
            if ".partial." in file.name or ".tmp." in file.name:
                self.breaks(command, "left behind")
            if file.suffix == ".json" and not is_json(file.read_text()):
                self.breaks(command, "half a file")


def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def unmeasured(text):
    if is_json(text):
        return without_measured(json.loads(text))
    return [re.sub(r"\s+\S+$", "", line) for line in text.splitlines() if not MEASURED.search(line)]


def without_measured(node):
    if isinstance(node, dict):
        return {key: without_measured(value) for key, value in node.items() if not MEASURED.search(key) and key != "program"}
    return [without_measured(value) for value in node] if isinstance(node, list) else node


def difference(one, other):
    return next((f"{a!r} and {b!r}" for a, b in zip(one.splitlines(), other.splitlines()) if a != b), "more lines")


def files(folder):
    """Hashes of the files in a folder, but for pages, measured times and the folder's own name. A search that was interrupted
    runs the best of what it saw in full, outside its order: such trials of its journal have no number."""
    hashes = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file() and path.suffix != ".html":  # a page is made of summary.json, with what was measured in words
            text = path.read_bytes().replace(b"-whole", b"")
            if path.name == "tune.journal":
                text = b"\n".join(line for line in text.splitlines() if b'"n":' in line or b'"asked"' in line)
            hashes[path.relative_to(folder).as_posix()] = hashlib.sha256(re.sub(rb'"(pack_ms|measured)[^}]*', b"", text)).hexdigest()
    return hashes


# A child's peak counts what it was before exec, too: this process, which grows with the day. An interpreter of its own is as
# small each time.
MEASURE = """
import resource, subprocess, sys, time
begin = time.monotonic()
subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
print(time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def reference(day):
    """Seconds and bytes that the reference study takes, the least of five."""
    path = pathlib.Path(day.folder) / "reference.json"
    path.write_text(json.dumps(REFERENCE))
    measure = [sys.executable, "-S", "-c", MEASURE, day.program, "study", path, "--quiet"]
    found = []
    for _ in range(5):
        seconds, memory = subprocess.check_output(measure, cwd=day.folder, text=True).split()
        found.append((float(seconds), int(memory)))
    return min(seconds for seconds, _ in found), min(memory for _, memory in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--commands", type=int, default=2880)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hostile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        day = Day(options.program, folder)
        before, end = reference(day), time.monotonic() + 60 * options.minutes
        use = Hostile(day).use if options.hostile else day.use
        left = iter(range(options.commands))  # `next` of it is atomic

        def user():
            for number in left:
                if time.monotonic() > end:
                    return
                use(random.Random(f"{options.seed} {number}"))

        users = [threading.Thread(target=user) for _ in range(2)]
        for thread in users:
            thread.start()
        for thread in users:
            thread.join()
        after = reference(day)
        day.ends()
    for what, count in sorted(day.done.items()):
        print(f"{count:6d}  {what}")
    print(f"the same study, first and last: {before[0]:.2f} and {after[0]:.2f} s, {before[1] >> 20} and {after[1] >> 20} MiB")
    if after[1] > 1.05 * before[1]:
        day.broken.append("memory grew")
        print("BROKEN memory grew")
    print(f"{sum(count for what, count in day.done.items() if 'ended' in what)} commands, {len(day.broken)} broken")
    return 1 if day.broken else 0


if __name__ == "__main__":
    sys.exit(main())

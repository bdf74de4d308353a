"""Inputs that should stay out: devices, bombs, files above a limit, pipes that many would read, folders that are
files, times that no clock holds. Each is refused in one line, soon, and before any work.

EQUIPOISE names the program; ctest sets it.
"""

import gzip
import json
import os
import resource
import shutil
import socket
import subprocess
import time
import unittest

from support import PROGRAM, STUDY, Case, run

PROFILES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "profiler", "profiles")
SOON_S = 20
LONGEST_LINE = 500


class Bounded(Case):
    """Every refusal comes soon, in a line of at most 500 characters."""

    def refused(self, *arguments, says=()):
        begin = time.monotonic()
        line = super().refused(*arguments, says=says)
        self.assertLess(time.monotonic() - begin, SOON_S, arguments)
        self.assertLessEqual(len(line), LONGEST_LINE, line)
        return line


class Sizes(Bounded):
    def test_a_device_is_no_file(self):
        for command in (("trace", "info", "/dev/zero"), ("study", "/dev/zero"), ("pack", "/dev/zero", "--policy", "plain"),
                        ("predict", "--profile", "h100-sxm", "--rows", "/dev/zero"),
                        ("fit", "--samples", "/dev/zero", "--out", self.folder / "p.json"), ("trace", "info", "/dev/null")):
            self.refused(*command, says=[command[-1] if command[0] == "trace" else "/dev/zero", "found a device, expected a file"])

    def test_what_is_packed_unpacks_to_no_more_than_a_limit(self):
        bomb = self.folder / "bomb.txt.gz"
        with gzip.open(bomb, "wb", compresslevel=9) as out:
            for _ in range(300):
                out.write(b"\0" * 10**6)
        line = self.refused("trace", "info", bomb, says=["bomb.txt.gz: byte", "1000 times its size", "--max-input-MB"])
        self.assertIn("1024 MB", line)
        self.refused("trace", "info", bomb, "--max-input-MB", 100, says=["more than fits", "100 MB"])
        self.refused("trace", "info", bomb, "--max-input-MB", 400, says=["bomb.txt.gz:1:"])  # read whole, and no lengths
        if shutil.which("zstd"):
            packed = self.folder / "bomb.txt.zst"
            with open(packed, "wb") as out:
                zstd = subprocess.Popen(["zstd", "-q", "-c", "-"], stdin=subprocess.PIPE, stdout=out)
                for _ in range(300):
                    zstd.stdin.write(b"1\n" * 500_000)
                zstd.stdin.close()
                zstd.wait()
            self.refused("trace", "info", packed, says=["bomb.txt.zst: byte", "1000 times its size"])
        honest = self.folder / "equal.txt.gz"  # a million equal documents are as well packed and welcome
        with gzip.open(honest, "wb", compresslevel=9) as out:
            out.write(b"8192\n" * 10**6)
        self.assertEqual(json.loads(self.ok("trace", "info", honest, "--format", "json"))["documents"], 10**6)

    def test_a_large_file_and_an_endless_pipe_are_read_up_to_the_limit(self):
        large = self.folder / "large.txt"
        with open(large, "wb") as out:
            out.truncate(5 * 10**9)  # a hole: nothing is on the disk
        self.refused("trace", "info", large, says=["large.txt: found a file of 5000 MB", "1024 MB", "--max-input-MB"])
        self.refused("study", large, says=["found a file of 5000 MB"])
        yes = subprocess.Popen(["yes", "8192"], stdout=subprocess.PIPE)
        command = [PROGRAM, "trace", "info", "/dev/stdin", "--max-input-MB", "50"]
        ended = subprocess.run(command, stdin=yes.stdout, capture_output=True, text=True, timeout=SOON_S)
        yes.kill()
        yes.wait()
        yes.stdout.close()
        self.assertEqual(ended.returncode, 2)
        self.assertIn("/dev/stdin: found more than fits, the limit of an input is 50 MB", ended.stderr)
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 2_000_000)  # kB

    def test_a_pipe_is_read_where_it_is_read_once(self):
        lengths = subprocess.run([PROGRAM, "trace", "info", "/dev/stdin", "--format", "json"], input="5\n7\n", capture_output=True, text=True)
        self.assertEqual(json.loads(lengths.stdout)["tokens"], 12)
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        writer = subprocess.Popen(["sh", "-c", 'cat "$1" > "$2"', "sh", str(self.write("s.json", dict(STUDY, parallel={"context": 2}))), str(pipe)])
        self.refused("execute", pipe, says=["expected a regular file, found a pipe: every rank reads it"])
        writer.kill()
        writer.wait()


    def test_a_study_through_a_pipe_is_read_once(self):
        study = self.write("s.json", dict(STUDY, batch={"context_window": "16K", "sequences_per_step": 4, "steps": 1}))
        space = self.write("space.json", {"layouts": [{"context": 2}, {"context": 1}], "policies": ["plain-4d"]})
        for arguments in (("study", "{}", "--sweep", "parallel.context=1,2", "--format", "csv"), ("study", "{}", "--format", "csv"),
                          ("tune", "{}", "--space", str(space), "--format", "csv", "--quiet"), ("explain", "{}")):
            words = [PROGRAM, *(word.format("/dev/stdin") for word in arguments)]
            piped = subprocess.run(words, input=study.read_text(), capture_output=True, text=True, timeout=SOON_S, cwd=self.folder)
            named = run(*(word.format(study) for word in arguments), cwd=self.folder)
            self.assertEqual((piped.returncode, piped.stdout), (named.returncode, named.stdout.replace(str(study), "/dev/stdin")), piped.stderr)

    def test_a_trace_through_a_pipe_is_read_once(self):
        study = self.write("study.json", dict(STUDY, trace={"file": "/dev/stdin", "repeat": True}))
        lengths = "\n".join(str(20 + n % 900) for n in range(500))
        words = (PROGRAM, "study", study, "--sweep", "batch.steps=1,2", "--format", "csv", "--quiet", "--out")
        piped = subprocess.run([*words, self.folder / "piped"], input=lengths, capture_output=True, text=True, timeout=SOON_S, check=True)
        self.assertNotIn("refused", piped.stdout)

    def test_samples_through_a_pipe(self):
        command = f"'{PROGRAM}' fit <(echo nothing) --base h100-sxm --out '{self.folder / 'made.json'}'"
        ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=SOON_S, check=False)
        self.assertIn("expected samples of `profile`", ended.stderr)

    def test_too_few_open_files_are_said(self):
        study = self.write("study.json", STUDY)
        ended = subprocess.run(["bash", "-c", f"ulimit -n 4; exec '{PROGRAM}' study '{study}' --quiet --out '{self.folder / 'out'}'"],
                               capture_output=True, text=True, timeout=SOON_S, check=False)
        self.assertEqual((ended.returncode, ended.stderr.count("\n")), (2, 1), ended.stderr)
        self.assertNotIn("error: :", ended.stderr)


class NeverOverAnInput(Case):
    """A command does not write over a file that it reads, by whatever name, and leaves nothing half written."""

    def names_of(self, path):
        (self.folder / "inside").mkdir(exist_ok=True)
        soft, hard = self.folder / "soft", self.folder / "hard"
        for link in (soft, hard):
            link.unlink(missing_ok=True)
        soft.symlink_to(path)
        os.link(path, hard)
        return path, self.folder / "inside" / ".." / path.name, soft, hard

    def kept(self, path, *arguments):
        """Refused for every name of the file, which stays as it was."""
        before = path.read_bytes()
        for name in self.names_of(path):
            self.refused(*arguments, name, says=["cannot write: found a file that this command reads"])
            self.assertEqual(path.read_bytes(), before, arguments)
        self.assertFalse([p.name for p in self.folder.rglob("*.partial.*")])

    def test_what_is_fitted(self):
        rows = "".join(f"all_gather,H100,8,1,8,{1 << size},{20 + (1 << size) / 3e5}\n" for size in range(12, 30))
        samples = self.write("x.csv", "op,gpu,n_gpus,n_nodes,gpus_per_node,size_bytes,time_us\n" + rows)
        self.kept(samples, "fit", samples, "--base", "h100-sxm", "--out")
        self.ok("fit", samples, "--base", "h100-sxm", "--out", self.folder / "made.json")

    def test_what_is_recorded(self):
        text = self.write("a.txt", "some text\n")
        self.kept(text, "trace", "record", text, "--out")
        self.refused("trace", "record", self.folder, "--out", text, says=["a.txt: cannot write"])
        sidecar = self.write("b.json", "{}")
        self.refused("trace", "record", sidecar, "--out", self.folder / "b", says=["b.json: cannot write"])
        self.refused("trace", "record", text, "--out", self.folder / "c", "--jobs", 100000, says=["--jobs: found 100000"])

    def test_what_lengths_are_measured_with(self):
        lengths = self.write("lengths.journal", "70\n900\n")
        measure = ("profile", "--minutes", 0.001, "--only", "launch", "--lengths", lengths, "--out")
        self.kept(lengths, *measure)
        self.refused(*measure, self.folder / "lengths", says=["lengths.journal: cannot write"])
        self.assertEqual(lengths.read_text(), "70\n900\n")

    def test_a_plan_and_a_best_study_that_lie_in_the_folder_are_refused_before_the_work(self):
        out = self.folder / "here"
        self.ok("study", self.write("study.json", STUDY), "--out", out, "--quiet")
        plan = self.write("planned.json", dict(STUDY, baseline="plan", policies=[{"name": "plan", "file": str(out / "plan.json"), "policy": "plain-4d"}]))
        self.refused("study", plan, "--out", out, "--quiet", says=["plan.json: cannot write: found a file that this command reads"])
        (out / "best.json").write_text(json.dumps(dict(STUDY, trace={"file": str(self.folder / STUDY["trace"]["file"])})
                                                  if "file" in STUDY["trace"] else STUDY))
        self.refused("tune", out / "best.json", "--out", out, "--budget", 2, "--quiet", says=["best.json: cannot write"])
        self.assertFalse((out / "tune.journal").exists())
        lengths = self.write("here/tune.journal", "700\n" * 99)
        tuned = self.write("tuned.json", dict(STUDY, trace={"file": str(lengths), "repeat": True}))
        self.refused("tune", tuned, "--out", out, "--budget", 2, "--quiet", says=["tune.journal: cannot write"])
        self.ok("report", out, "--out", out / "report.html")  # the page is made anew from what it holds

    def test_a_name_that_is_a_file_too_is_no_input(self):
        for name in ("notes.txt", "plain", "llama2-7b"):
            self.write(name, "not an input")
        out = self.folder / "named"
        self.ok("study", self.write("study.json", dict(STUDY, name="notes.txt")), "--out", out, "--quiet")
        self.assertEqual({"documents", "profile"}, set(json.loads((out / "summary.json").read_text())["receipt"]["inputs"]))

    def test_a_study_that_is_called_as_one_of_its_results(self):
        out = self.folder / "out"
        out.mkdir()
        for name in ("summary.json", "plan.json"):
            study = out / name
            study.write_text(json.dumps(STUDY))
            self.refused("study", study, "--out", out, says=[f"{name}: cannot write: found a file that this command reads"])
            self.assertEqual([p.name for p in out.iterdir()], [name])
            self.assertEqual(json.loads(study.read_text()), STUDY)
            study.unlink()

    def test_above_the_size_of_a_file_nothing_is_left(self):
        study = self.write("s.json", STUDY)
        command = f"ulimit -f 8; exec '{PROGRAM}' study '{study}' --out '{self.folder / 'out'}' --quiet"
        ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=SOON_S, check=False)
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn("File too large", ended.stderr)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name != "s.json"], [])

    def test_what_a_killed_run_left_of_a_file_goes_with_the_next(self):
        ended = subprocess.Popen(["true"])
        ended.wait()
        left = self.folder / f"other.txt.partial.{ended.pid}.{socket.gethostname()}"
        alive = self.folder / f"other.txt.partial.{os.getpid()}.{socket.gethostname()}"
        for file in (left, alive):
            file.write_text("half of it")
        self.ok("trace", "synth", "--distribution", "wikipedia", "--documents", 5, "--out", self.folder / "t.txt")
        self.assertEqual((left.exists(), alive.exists()), (False, True))


class BeforeTheWork(Bounded):
    TINY = {"name": "tiny", "layers": 2, "hidden": 32, "heads": 2, "ffn": 48, "vocab": 67}

    def study(self, model):
        return self.write("study.json", {"name": "s", "trace": {"uniform": 64}, "model": model, "cluster": {"profile": "cpu"},
                                         "parallel": {"context": 2}, "policies": ["plain"],
                                         "batch": {"context_window": 64, "sequences_per_step": 2, "steps": 1}})

    def test_a_file_where_a_folder_is_to_stand(self):
        study, file = self.study(self.TINY), self.write("file", "x")
        for command in (("execute", study, "--out"), ("execute", study, "--dump"), ("validate", study, "--out"), ("study", study, "--out")):
            self.refused(*command, file, says=[command[-1], "expected a folder, found a file"])
            self.refused(*command, file / "inner", says=[command[-1], "expected a folder, found a file: " + str(file)])
        self.assertEqual(file.read_text(), "x")

    def test_a_model_that_cannot_fit_this_machine_is_refused_with_the_estimate(self):
        study = self.study("llama2-7b")
        for command in ("execute", "validate"):
            self.refused(command, study, "--max-memory-GB", 16, says=["parameters of llama2-7b on 2 ranks", "needs about", "the limit is 16 GB"])
        self.refused("execute", study, "--set", "model=llama3.1-405b", says=["parameters of llama3.1-405b", "needs about"])


def numbers(node, place=()):
    """Places of all numbers below a table's parameters."""
    if isinstance(node, dict):
        return [found for key, below in node.items() for found in numbers(below, (*place, key))]
    return [place] if isinstance(node, (int, float)) and not isinstance(node, bool) else []


def damaged(profile, place, factor):
    copy = json.loads(json.dumps(profile))
    node = copy["tables"]["gemm"]["bf16"]["parameters"]
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] *= factor
    return copy


class Clock(Bounded):
    def test_parameters_that_make_no_time_are_a_row_or_a_line(self):
        with open(os.path.join(PROFILES, "h100-sxm.json"), encoding="utf-8") as file:
            profile = json.load(file)
        study = self.write("study.json", STUDY)
        for factor in (1e30, 1e12):
            for name in numbers(profile["tables"]["gemm"]["bf16"]["parameters"]):
                path = self.write("damaged.json", damaged(profile, name, factor))
                for more in ((), ("--fidelity", "op")):
                    result = run("study", study, "--set", f"cluster.profile={path}", "--format", "json", *more)
                    self.assertIn(result.returncode, (0, 2), (name, factor, result.stderr))
                    self.assertLessEqual(max(map(len, result.stderr.splitlines()), default=0), LONGEST_LINE)
                    for row in json.loads(result.stdout)["policies"] if result.returncode == 0 else []:
                        seconds = (row.get("metrics") or {}).get("step_seconds")
                        self.assertTrue(seconds is None or 0 < seconds < 1e7, (name, factor, seconds))
                        self.assertTrue(row["status"] == "ok" or row["reason"], row)
                schedule = run("schedule", "--schedule", "1f1b", "--stages", 4, "--lengths", "1000,2000", "--profile", path)
                self.assertIn(schedule.returncode, (0, 2), (name, factor, schedule.stderr))

    def test_predict_prints_no_number_that_is_none(self):
        with open(os.path.join(PROFILES, "h100-sxm.json"), encoding="utf-8") as file:
            profile = json.load(file)
        for name in numbers(profile["tables"]["gemm"]["bf16"]["parameters"]):
            for factor in (1e300, -1):
                path = self.write("damaged.json", damaged(profile, name, factor))
                rows = self.write("rows.csv", "M,N,K,time_ms\n4096,4096,4096,0.2\n1,8,8,0.01\n")
                result = run("predict", "--profile", path, "--rows", rows)
                self.assertIn(result.returncode, (0, 2), result.stderr)
                for word in ("nan", "inf"):
                    self.assertNotIn(word, result.stdout, (name, factor))


class OwnFiles(Case):
    def test_a_share_folder_in_the_current_one_is_not_the_programs(self):
        (self.folder / "share" / "profiles").mkdir(parents=True)
        (self.folder / "share" / "profiles" / "h100-sxm.json").write_text("{}")
        (self.folder / "bin").mkdir()
        shutil.copy(PROGRAM, self.folder / "bin" / "equipoise")  # found by PATH, so that no folder is in its name
        environment = dict(os.environ, PATH=f"{self.folder / 'bin'}:{os.environ['PATH']}", NO_COLOR="1")
        shown = subprocess.run(["equipoise", "profiles", "show", "h100-sxm"], cwd=self.folder, env=environment, capture_output=True, text=True)
        self.assertEqual(shown.returncode, 0, shown.stderr)

    def test_doctor_finds_this_build_sound(self):
        found = {line["what"]: line for line in json.loads(self.ok("doctor", "--format", "json"))}
        for what in ("build", "memory", "disk", "profiles", "recorded traces", "shipped files", "device cpu", "a run"):
            self.assertEqual(found[what]["state"], "ok", found[what])
        self.assertIn("both fidelities alike", found["a run"]["found"])
        self.assertNotIn("FAILED", self.ok("doctor"))
        self.refused("doctor", "--format", "csv", says=["allowed: table, json"])


class NoEffect(Case):
    def notes(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [line.removeprefix("note: ") for line in result.stderr.splitlines() if " has no effect" in line]

    def test_one_form_of_note_for_options_and_keys(self):
        study = self.write("study.json", STUDY)
        only = " has no effect: it acts only with "
        self.assertEqual(self.notes("study", study), [])
        for typed, where in ((("--jitter-seed", 3), "--jitter"), (("--timeline-steps", 2), "--out"), (("--timeline-lanes", 0), "--out"),
                             (("--timeline-gzip",), "--out"), (("--max-cases", 5), "--sweep"), (("--max-output-GB", 2), "--out")):
            self.assertEqual(self.notes("study", study, *typed), [typed[0] + only + where])
            self.assertEqual(self.notes("study", study, *typed, "--quiet"), [])
        schedule = ("schedule", "--schedule", "1f1b", "--stages", 2, "--lengths", "1,2")
        self.assertEqual(self.notes(*schedule, "--tensor", 4), ["--tensor" + only + "--profile"])
        for key, value, where in (("trace.column", "x", "a file of columns: .csv, .tsv, .jsonl, .ndjson"), ("trace.repeat", "true", "a file, a mixture or a number of documents"),
                                  ("framework.expert_skew", 1, "a model that has experts"), ("framework.exchange_sms", 8, "parallel.expert above 1, or with zero 0 to 2 and several replicas but no pipeline"),
                                  ("framework.reduce_each_micro_batch", "false", "zero 2: zero 3 always reduces so, others reduce after the last one")):
            self.assertEqual(self.notes("study", study, "--notes", "--set", f"{key}={value}"), [key + only + where])
        uniform = dict(STUDY, trace={"uniform": 512, "seed": 3})
        self.assertEqual(self.notes("study", self.write("u.json", uniform), "--notes"), ["trace.seed" + only + "a distribution, a mixture of several or shuffle"])
        self.assertEqual(self.notes("study", study, "--notes", "--set", "policies.1.delay_bound=1"), ["wlb: delay_bound" + only + "search"])

    def test_a_key_is_swept_once(self):
        study = self.write("study.json", STUDY)
        self.refused("study", study, "--sweep", "batch.steps=1,2", "--sweep", "batch.steps=3", says=["--sweep batch.steps: expected each key once"])


if __name__ == "__main__":
    assert os.path.exists(PROGRAM), PROGRAM
    unittest.main()

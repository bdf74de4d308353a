"""`study --set`, `--sweep`, `--resume`, `--shard` and `merge`: the cases of a sweep, in one go, in parts, interrupted."""

import csv
import html
import io
import json
import os
import re
import signal
import subprocess
import time
import unittest
from unittest import mock

from support import PROGRAM, STUDY, Case, run


class SweepCommand(Case):
    SWEEP = ("--sweep", "parallel.context=1,2", "--sweep", "batch.steps=1,2,3")

    def test_all_cases_of_a_sweep_are_read_before_any_runs(self):
        study = self.write("study.json", STUDY)
        self.refused("study", study, "--sweep", "parallel.context=1,x", says=["parallel.context", "x"])
        self.refused("study", study, "--sweep", "parallel.pipeline=2,1", "--timeline-stages", 1, says=["--timeline-stages", "0 to 0", 1])

    def test_an_interrupted_sweep_keeps_what_is_finished(self):
        study = self.write("study.json", dict(STUDY, trace={"uniform": 8192, "documents": 4096, "repeat": True}))
        out = self.folder / "out"
        program = subprocess.Popen(
            [PROGRAM, "study", study, "--sweep", "batch.steps=2,400000", "--out", out, "--format", "csv", "--quiet"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 60
        while not (out / "batch.steps=2" / "summary.json").exists() and time.monotonic() < until:
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        printed, said = program.communicate(timeout=60)
        self.assertEqual((program.returncode, said.splitlines()[0]), (130, "interrupted: 1 of 2 cases finished; --resume goes on from there"))
        self.assertEqual({row["case"] for row in csv.DictReader(io.StringIO(printed))}, {"batch.steps=2"})
        self.assertEqual({p.name for p in out.iterdir()}, {"batch.steps=2", "report.html", "sweep.csv", "sweep.journal"})

    def test_an_interrupted_sweep_resumes(self):
        study = self.write("study.json", STUDY)
        out, shard = self.folder / "out", self.folder / "out" / "shard-0-of-1"
        self.ok("study", study, *self.SWEEP, "--out", out)
        self.assertNotIn("sweep.journal", [p.name for p in out.iterdir()])  # it is whole
        parts = self.folder / "parts"
        self.ok("study", study, *self.SWEEP, "--shard", "0/2", "--out", parts)
        journal = parts / "shard-0-of-2" / "sweep.journal"
        lines = journal.read_bytes().splitlines(keepends=True)
        self.assertEqual(len(lines), 1 + 3)
        journal.write_bytes(b"".join(lines[:3]) + lines[3][:100])  # killed while it wrote
        first = parts / "shard-0-of-2" / "parallel.context=1_batch.steps=1" / "summary.json"
        before = first.stat().st_mtime_ns
        self.ok("study", study, *self.SWEEP, "--shard", "0/2", "--out", parts, "--resume")
        self.assertEqual(first.stat().st_mtime_ns, before)
        self.assertEqual(len(journal.read_bytes().splitlines()), 1 + 3)
        for other in (["--set", "trace.seed=4"], ["--max-delay", 5], ["--tokens", "1T"]):
            self.refused("study", study, *self.SWEEP, *other, "--shard", "0/2", "--out", parts, "--resume", says=["--resume", "another sweep"])
        self.refused("study", study, "--resume", "--out", out, says=["--resume", "--sweep"])
        self.refused("study", study, "--shard", "0/2", *self.SWEEP, says=["--shard", "--out"])
        self.assertFalse(shard.exists())

    def test_cases_of_other_files_are_not_taken(self):
        """A trace that a case names is part of what the sweep was asked, though no case reads it yet."""
        first, second = (self.write(f"{name}.txt", "\n".join(str(500 + 37 * i % 9000) for i in range(400))) for name in "ab")
        study = self.write("study.json", dict(STUDY, trace={"file": "a.txt"}))
        sweep = ("--sweep", "trace.file=a.txt,b.txt")
        parts = self.folder / "parts"
        self.ok("study", study, *sweep, "--shard", "0/2", "--out", parts)
        for file in (first, second):
            before = file.read_text()
            file.write_text(before.replace("537", "4000", 1))
            self.refused("study", study, *sweep, "--shard", "0/2", "--out", parts, "--resume", says=["--resume", "another sweep", file.name])
            self.ok("study", study, *sweep, "--shard", "1/2", "--out", parts)
            self.refused("merge", self.folder / "merged", parts, says=["shard-1-of-2", "found another", "files"])
            file.write_text(before)
        self.ok("study", study, *sweep, "--shard", "1/2", "--out", parts)
        self.ok("study", study, *sweep, "--shard", "0/2", "--out", parts, "--resume")
        self.ok("merge", self.folder / "merged", parts)

    def test_shards_are_one_sweep(self):
        study = self.write("study.json", STUDY)
        whole, parts, merged = (self.folder / name for name in ("whole", "parts", "merged"))
        plain = {form: self.ok("study", study, *self.SWEEP, "--out", whole, "--format", form, "--wide") for form in ("table", "csv", "json")}
        for rank in range(4):  # as mpirun starts them
            with mock.patch.dict(os.environ, {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "4"}):
                self.assertEqual(self.ok("study", study, *self.SWEEP, "--out", parts), "")
        measured = re.compile(r'"pack_ms": [-0-9.e+]+')
        together = {form: self.ok("merge", merged, parts, "--format", form, "--wide") for form in plain}
        self.assertEqual(measured.sub("", together["json"]), measured.sub("", plain["json"]))
        rows = {form: list(csv.DictReader(io.StringIO(text["csv"]))) for form, text in (("plain", plain), ("together", together))}
        for row in rows["plain"] + rows["together"]:
            row.pop("pack_ms", None)
        self.assertEqual(rows["plain"], rows["together"])
        names = [line.split()[:3] for line in plain["table"].splitlines()]
        self.assertEqual([line.split()[:3] for line in together["table"].splitlines()], names)
        files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
        self.assertIn("sweep.csv", map(str, files))
        self.assertEqual((merged / "sweep.csv").read_text(), together["csv"])
        self.assertEqual(sorted(path.relative_to(merged) for path in merged.rglob("*") if path.is_file()), files)
        for file in files:
            a, b = ((folder / file).read_bytes() for folder in (whole, merged))
            if file.suffix in (".json", ".csv") or (file.suffix == ".html" and len(file.parts) > 1):
                continue  # they hold measured times, and were compared above
            self.assertEqual(a, b, file)
        (parts / "shard-2-of-4" / "sweep.journal").unlink()
        self.refused("merge", merged, parts, says=["expected all 4 shards", "missing: 2"])

    def test_different_numbers_of_gpus_are_said_at_the_end(self):
        study = self.write("study.json", STUDY)
        for sweep, said in (("parallel.data=1,2", 1), ("batch.steps=1,2", 0)):
            done = run("study", study, "--sweep", sweep)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("cases run on different numbers of GPUs"), said, done.stdout)
            for options in ((), ("--wide",), ("--notes",)):
                of_csv = run("study", study, "--sweep", sweep, "--format", "csv", *options)
                self.assertEqual(of_csv.stderr.count("cases run on different numbers of GPUs"), said, of_csv.stderr)

    def test_the_finding_of_the_page_is_below_the_table(self):
        study = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=8)))
        text = self.ok("study", study, "--sweep", "parallel.context=1,2", "--out", self.folder / "out", "--quiet")
        page = (self.folder / "out/report.html").read_text()
        headline = html.unescape(re.search(r"<h1[^>]*>(.*?)</h1>", page, re.DOTALL).group(1))
        self.assertRegex(headline, r"^CP 2 costs .* % a GPU against 1, on 4 or 8 GPUs$")
        self.assertIn(f"\nFound     {headline}. ", text)

    def test_a_sweep_fits_on_a_screen(self):
        """All rows, else one row of each case, else the fastest cases: at most 110 columns and 25 lines."""
        study = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=4)))
        cases = []
        for values in ("25,50", "5,10,15,20,25,30,35,40,45,50", ",".join(map(str, range(11, 51)))):
            sweep = ("study", study, "--sweep", f"cluster.network.nic_GBps={values}", "--set", "parallel.context=8", "--quiet")
            lines = self.ok(*sweep).splitlines()
            self.assertLessEqual(len(lines), 25, lines)
            self.assertLessEqual(max(map(len, lines)), 110, lines)
            rows = [line for line in lines if line.startswith("NIC ")]
            cases.append([line.split()[1] for line in rows])
            self.assertEqual("Shown" in "\n".join(lines), len(cases) > 1)
            for label in ("Found", "Report", "Next"):
                self.assertEqual(len([line for line in lines if line.startswith(label)]), 1, lines)
        self.assertEqual(cases[0], ["25", "25", "50", "50"])
        self.assertEqual(cases[1], [str(5 * i) for i in range(1, 11)])
        self.assertEqual(cases[2], [str(50 - i) for i in range(len(cases[2]))])  # a faster card trains faster
        self.assertIn(f"the fastest {len(cases[2])} of 40 cases", " ".join(lines))
        self.assertEqual(len([line for line in self.ok(*sweep, "--wide").splitlines() if line.startswith("cluster.network.nic_GBps=") and ": " not in line]), 80)
        words = " ".join(line.rstrip("\\") for line in lines).split("equipoise ")[1].split()
        self.assertEqual(words[:6], ["study", str(study), "--set", "parallel.context=8", "--set", "cluster.network.nic_GBps=50"])
        with mock.patch.dict("os.environ", {"COLUMNS": "80"}):
            self.assertLessEqual(max(map(len, self.ok(*sweep).splitlines())), 80)

    def test_the_row_of_a_case_is_one_that_its_framework_runs(self):
        """Faster ones are named with what they need, as the screen of a study does."""
        study = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=4), policies=["plain-4d", {"name": "skrull"}]))
        sweep = ("study", study, "--sweep", "cluster.network.nic_GBps=" + ",".join(map(str, range(11, 21))), "--quiet")
        cases = json.loads(self.ok(*sweep, "--format", "json"))
        for case in cases:
            self.assertEqual(case["comparison"]["fastest"], "plain-4d")
            self.assertEqual([row["label"] for row in case["comparison"]["faster"]], ["skrull"])
        screen = self.ok(*sweep)
        shown = [line for line in screen.splitlines() if line.startswith("NIC ")]
        self.assertEqual(len(shown), 10)
        self.assertEqual({line.split()[3] for line in shown}, {"plain-4d"})
        words = " ".join(screen.split())
        self.assertRegex(words, r" Shown of each case the fastest row that its framework runs in the order of the data;")
        self.assertIn(" plain-4d is the fastest that its framework runs in the order of the data in all 10 cases. ", words)
        ratio = max(case["comparison"]["faster"][0]["ratio"] for case in cases)
        passed_over = f"skrull in 10 of 10 cases, up to {ratio:.2f}x (documents whole on one CP rank)."
        self.assertIn(f" Faster {passed_over} ", words)
        self.assertIn(f"\nFaster: {passed_over}\n", self.ok(*sweep, "--wide", "--out", self.folder / "out"))
        self.assertIn(f"Faster: {passed_over}", html.unescape((self.folder / "out/report.html").read_text()))

    def test_warnings_are_in_no_format_lost(self):
        study = self.write("study.json", dict(STUDY, batch=dict(STUDY["batch"], steps=4), cluster={"memory_GB": 12}))
        sweep = ("study", study, "--sweep", "parallel.context=1,2,4,8", "--quiet")
        said = [run(*sweep, "--format", "csv", *wide).stderr.splitlines() for wide in ((), ("--wide",))]
        self.assertGreater(len(said[0]), 1)
        self.assertLess(set(said[0][:2]), set(said[1]))  # --wide has all of them
        self.assertEqual(len([line for line in said[1] if "different numbers of GPUs" in line]), 1)
        # A warning that is cut says more than which cases have it.
        with mock.patch.dict("os.environ", {"COLUMNS": "80"}):
            screen = self.ok(*sweep)
        cut = [" ".join(text.split()) for text in re.findall(r"\nWarning(.*?)(?=\n\S)", screen, re.DOTALL)]
        self.assertEqual(len(cut), 2, screen)
        for warning in cut:
            begin = re.split(r" ?\.\.\.", warning)[0]
            whole = [line for line in said[1] if line.startswith(f"warning: {begin}")]
            self.assertTrue(whole, (warning, said[1]))
            where = re.match(r"\d of \d cases, in the first: |\S+ \d+: |", begin).group()
            self.assertGreater(len(begin) - len(where), 20, warning)

    def test_a_sweep_in_which_nothing_runs_says_what_was_run(self):
        study = self.write("study.json", STUDY)
        first = self.ok("study", study, "--sweep", "cluster.memory_GB=1,2", "--quiet").splitlines()[0]
        self.assertEqual(first, "wlb-550m, 16K window, 8 GPUs (TP 2, CP 2, PP 2, DP 1), h100-sxm, framework megatron, simulated, 2 cases")

    def test_cases_of_equal_gpus(self):
        study = self.write("study.json", dict(STUDY, parallel=dict(STUDY["parallel"], data=2)))
        sweep = ("study", study, "--sweep", "parallel.context=1,2", "--set", "batch.steps=1")
        lines = self.ok(*sweep).splitlines()
        self.assertEqual([line.split()[3] for line in lines[2:6]], ["8", "8", "16", "16"])  # a wider CP bought twice the GPUs
        fixed = (*sweep, "--set", "cluster.gpus=8")
        self.assertNotIn("GPUs", self.ok(*fixed).splitlines()[1].split())
        cases = json.loads(self.ok(*fixed, "--format", "json"))
        self.assertEqual([(case["study"]["gpus"], case["study"]["data"]) for case in cases], [(8, 2), (8, 1)])
        rows = list(csv.DictReader(io.StringIO(self.ok(*sweep, "--format", "csv"))))
        self.assertEqual([row["gpus"] for row in rows], ["8", "8", "16", "16"])
        odd = json.loads(self.ok(*sweep[:2], "--sweep", "parallel.context=1,3", "--set", "cluster.gpus=8", "--set", "batch.steps=1", "--format", "json"))
        self.assertEqual([{row["status"] for row in case["policies"]} for case in odd], [{"ok"}, {"refused"}])
        self.assertIn("cluster.gpus: expected a multiple of parallel.tensor x context x pipeline = 12, found 8", odd[1]["policies"][0]["reason"])
        self.refused("study", study, "--set", "cluster.gpus=12", says=["study.json: cluster.gpus", "12"])
        self.refused("study", study, "--set", "cluster.gpus=16", "--set", "parallel.data=1", says=["study.json: parallel.data", "cluster.gpus 16"])

    def test_seeds_show_the_spread_of_every_row(self):
        study = self.write("study.json", dict(STUDY, trace={"distribution": "wlb-128k", "seed": 7}))
        cases = json.loads(self.ok("study", study, "--sweep", "trace.seed=7,8,9", "--format", "json"))
        found = json.loads(self.ok("study", study, "--seeds", 3, "--format", "json"))
        self.assertEqual((found["schema"], found["seeds"]), ("equipoise.seeds/1", ["7", "8", "9"]))
        for number, row in enumerate(found["rows"]):
            for key in ("tokens_per_second_per_gpu", "speedup"):
                of_seeds = [case["policies"][number]["metrics"][key] for case in cases]
                self.assertEqual((row[key]["lowest"], row[key]["highest"]), (min(of_seeds), max(of_seeds)))
                self.assertAlmostEqual(row[key]["mean"], sum(of_seeds) / 3)
        self.assertLess(found["rows"][0]["tokens_per_second_per_gpu"]["lowest"], found["rows"][0]["tokens_per_second_per_gpu"]["highest"])
        lines = self.ok("study", study, "--seeds", 3).splitlines()
        self.assertEqual(lines[0], "small: 3 seeds of the trace, the mean (lowest to highest), speed-ups over plain-4d")
        self.assertEqual([line.split()[:2] for line in lines[2:]], [["plain-4d", "3"], ["wlb", "3"]])
        self.assertLessEqual(max(map(len, lines)), 110)
        parts, whole = self.folder / "parts", self.folder / "whole"
        for share in range(2):
            self.ok("study", study, "--seeds", 3, "--shard", f"{share}/2", "--out", parts)
        merged = self.ok("merge", self.folder / "merged", parts, "--format", "csv")
        self.assertEqual(self.ok("study", study, "--seeds", 3, "--out", whole, "--format", "csv"), merged)
        self.assertEqual((whole / "seeds.csv").read_text(), merged)

    def test_a_file_has_seeds_once_it_is_shuffled(self):
        lengths = self.write("lengths.txt", "".join(f"{1000 + 977 * i % 16000}\n" for i in range(400)))
        for trace in ({"file": str(lengths)}, {"mixture": [{"file": str(lengths)}]}):
            study = self.write("study.json", dict(STUDY, trace=trace))
            self.refused("study", study, "--seeds", 3, says=["--seeds", "study.json", "trace.shuffle", "expected true"])
            self.assertIn("trace.seed has no effect", run("study", study, "--set", "trace.seed=1", "--notes").stderr)
            shuffled = json.loads(self.ok("study", study, "--seeds", 3, "--set", "trace.shuffle=true", "--format", "json"))
            self.assertEqual({row["case"] for row in shuffled["rows"]}, {""})
            rate = shuffled["rows"][0]["tokens_per_second_per_gpu"]
            self.assertLess(rate["lowest"], rate["highest"])
        uniform = self.write("uniform.json", dict(STUDY, trace={"uniform": 8192}))
        self.refused("study", uniform, "--seeds", 3, says=["--seeds", "trace.shuffle"])

    def test_a_borrowed_network_is_said_once_at_the_end(self):
        study = self.write("study.json", {**STUDY, "parallel": {**STUDY["parallel"], "data": 2}})
        sweep = ("--sweep", "parallel.context=1,2,4", "--sweep", "batch.steps=1,2", "--quiet")
        for options in (("--notes",), sweep):
            done = run("study", study, *options, "--wide")
            self.assertEqual((done.stdout + done.stderr).count("borrowed"), 1, done)

    def test_set_and_sweep(self):
        study = self.write("study.json", STUDY)
        summary = json.loads(self.ok("study", study, "--set", "parallel.context=1", "--format", "json"))
        self.assertEqual(summary["study"]["gpus"], 4)
        cases = json.loads(self.ok("study", study, "--sweep", "parallel.context=1,2", "--sweep", "batch.steps=1,2", "--format", "json"))
        self.assertEqual(
            [case["case"] for case in cases],
            [f"parallel.context={c} batch.steps={s}" for c in (1, 2) for s in (1, 2)],
        )
        self.assertEqual([case["study"]["gpus"] for case in cases], [4, 4, 8, 8])
        rows = list(csv.DictReader(io.StringIO(self.ok("study", study, "--sweep", "batch.steps=1,2", "--format", "csv"))))
        self.assertEqual([row["case"] for row in rows], ["batch.steps=1"] * 2 + ["batch.steps=2"] * 2)
        self.ok("study", study, "--sweep", "batch.steps=1,2", "--out", self.folder / "sweep")
        self.assertEqual(len(list((self.folder / "sweep").glob("*/summary.json"))), 2)
        self.refused("study", study, "--sweep", "batch.steps=", says=["--sweep"])
        self.refused("study", study, "--set", "batch.step=3", says=["step", "steps"])

    def test_a_sweep_is_one_table_and_no_case_ends_it(self):
        study = self.write("study.json", dict(STUDY, trace={"uniform": 8192, "documents": 12}))  # 3 steps of 4 x 8K
        sweep = ("study", study, "--sweep", "batch.steps=2,400", "--set", "batch.context_window=8K")
        table = self.ok(*sweep, "--wide")
        lines = [line for line in table.splitlines() if line.startswith("batch.steps=")]
        self.assertEqual([line.split()[:2] for line in lines[:4]],
                         [[f"batch.steps={n}", policy] for n in (2, 400) for policy in ("plain-4d", "wlb")])
        self.assertTrue(lines[4].startswith("batch.steps=400: plain-4d is refused: "), lines)
        self.assertIn("too short", lines[4])
        cases = json.loads(self.ok(*sweep, "--format", "json"))
        self.assertEqual([[p["status"] for p in case["policies"]] for case in cases], [["ok", "ok"], ["refused", "refused"]])
        self.assertEqual([case["case"] for case in cases], ["batch.steps=2", "batch.steps=400"])
        self.refused("study", study, "--set", "batch.steps=400", says=["study.json", "too short"])  # alone
        # A layout that the model does not allow is a case's own trouble, one that no case can have the user's.
        layouts = ("study", study, "--sweep", "parallel.tensor=2,5", "--set", "batch.steps=2", "--set", "batch.context_window=8K")
        cases = json.loads(self.ok(*layouts, "--format", "json"))
        self.assertEqual([{p["status"] for p in case["policies"]} for case in cases], [{"ok"}, {"refused"}])
        self.assertIn("parallel.tensor: expected a divisor", cases[1]["policies"][0]["reason"])
        self.assertIn("parallel.tensor=5: plain-4d is refused: ", self.ok(*layouts, "--wide"))
        rows = list(csv.DictReader(io.StringIO(self.ok(*layouts, "--format", "csv"))))
        self.assertEqual([(row["case"], row["status"]) for row in rows],
                         [(f"parallel.tensor={t}", status) for t, status in ((2, "ok"), (5, "refused")) for _ in range(2)])
        self.ok(*layouts, "--out", self.folder / "layouts")
        refused = json.loads((self.folder / "layouts" / "parallel.tensor=5" / "summary.json").read_text())
        self.assertEqual([p["status"] for p in refused["policies"]], ["refused", "refused"])
        self.refused("study", study, "--sweep", "parallel.tensor=5,7", says=["parallel.tensor=5: ", "12 heads"])
        self.refused("study", study, "--sweep", "batch.sequences_per_step=3,5", "--set", "parallel.data=2", says=["batch.sequences_per_step=3: "])
        self.refused("study", study, "--sweep", "cluster.profile=h100-sxm,h101", says=["cluster.profile=h101: ", "cluster.profile", "h100-sxm"])
        notes = run(*sweep, "--notes", "--set", "policies.0={\"name\": \"plain\", \"label\": \"plain-4d\", \"search\": true}").stderr.splitlines()
        self.assertEqual([note for note in notes if " is refused: " not in note],
                         [f"note: batch.steps={n}: plain-4d: search has no effect on plain" for n in (2, 400)])
        self.assertEqual([note.split(" is refused: ")[0] for note in notes if " is refused: " in note],
                         [f"note: batch.steps=400: {policy}" for policy in ("plain-4d", "wlb")])


if __name__ == "__main__":
    unittest.main()

"""The program as a user sees it: help, exit codes, one-line errors, formats, files written whole or not at all.

EQUIPOISE names the program; ctest sets it.
"""

import csv
import gzip
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest
from unittest import mock

from support import PROGRAM, STUDY, Case, run


SOURCE = pathlib.Path(__file__).resolve().parents[2]


def commands(help_text):
    """Names in the Subcommands section of a help text."""
    section = help_text.split("Subcommands:")
    return re.findall(r"^  (\S+)", section[1], re.MULTILINE) if len(section) > 1 else []


def listens(pid, number):
    """Whether the process handles this signal by itself."""
    caught = re.search(r"SigCgt:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text())
    return caught is not None and int(caught.group(1), 16) >> (number - 1) & 1 == 1


class Interrupts(Case):
    def interrupted(self, number, *arguments):
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while process.poll() is None and not listens(process.pid, number) and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(number)
        out, errors = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out, errors), (130, "", "interrupted\n"), arguments)

    def test_what_runs_a_study_ends_with_130(self):
        saved = self.folder / "saved"
        self.ok("study", self.write("study.json", STUDY), "--quiet", "--out", saved)
        summary = json.loads((saved / "summary.json").read_text())
        summary["receipt"]["study"]["batch"]["steps"] = 5000
        saved = self.write("summary.json", summary)
        study = self.write("study.json", {**STUDY, "batch": {**STUDY["batch"], "steps": 5000}})
        for number in (signal.SIGINT, signal.SIGTERM):
            self.interrupted(number, "study", study, "--quiet")
            self.interrupted(number, "check", study, "--quiet", "--update", "--expect", self.folder / "expect.json")
            self.interrupted(number, "export", study, "--for", "megatron")
            self.interrupted(number, "verify", saved)


class Help(Case):
    def test_every_command_has_an_example(self):
        top = commands(self.ok("--help"))
        for name in ("study", "pack", "shard", "schedule", "trace", "list", "profile", "fit", "profiles", "predict"):
            self.assertIn(name, top)
        for name in top:
            text = self.ok(name, "--help")
            nested = commands(text)
            texts = [text] if not nested else [self.ok(name, inner, "--help") for inner in nested]
            for each in texts:
                self.assertIn("Example: equipoise " + name, each)
        self.assertIn("--tokenizer", self.ok("trace", "record", "--help"))
        self.refused("trace", "record", says=["--help shows the options"])

    def test_an_unknown_command_is_named_with_its_nearest(self):
        self.refused("foo", says=['unknown command "foo"'])
        self.refused("stduy", says=['unknown command "stduy"', 'did you mean "study"?'])
        self.refused(says=["subcommand"])
        self.refused("study", "x.json", "--no-such-option", says=["equipoise study", "--no-such-option"])
        self.refused("pack", "wlb-128k", "--polcy=wlb", says=["equipoise pack", '"--polcy"', 'did you mean "--policy"?'])
        self.refused("study", "x.json", "y.json", says=["equipoise study", '"y.json"'])
        self.refused("trace", "inof", says=['unknown command "inof"', 'did you mean "info"?'])
        self.refused("profiles", "shwo", says=['unknown command "shwo"', 'did you mean "show"?'])
        self.refused("trace", says=["equipoise trace", "subcommand"])

    def test_numbers_say_what_they_may_be(self):
        shard = ("shard", "--lengths", "8", "--cp")
        for found in ("x", "1.5", "", "2K"):
            self.refused(*shard, found, says=["--cp: expected an integer, found " + (found or "nothing")])
        self.refused(*shard, 1 << 40, says=[f"--cp: expected an integer <= 2147483647, found {1 << 40}"])
        schedule = ("schedule", "--schedule", "1f1b", "--lengths", "1,1", "--stages")
        self.refused(*schedule, 99999999999, says=["--stages: expected an integer <= 2147483647, found 99999999999"])
        self.refused(*schedule, -(1 << 40), says=[f"--stages: expected an integer >= -2147483648, found -{1 << 40}"])
        self.refused("trace", "synth", "--distribution", "wlb-128k", "--seed", 1 << 70, says=[f"--seed: expected an integer <= 18446744073709551615, found {1 << 70}"])
        synth = ("trace", "synth", "--distribution", "wlb-128k")
        self.refused(*synth, "--seed", -1, says=["--seed: expected an integer >= 0, found -1"])
        for found in (0, "many"):
            self.refused(*synth, "--documents", found, says=["--documents", found])
        self.refused(*synth, "--documents", "1024M", says=["documents", 1 << 30, "268435456"])
        self.assertEqual(len(self.ok(*synth, "--documents", "1K").splitlines()), 1024)
        for found in ("nan", "inf", "x"):
            self.refused("profile", "--minutes", found, says=["--minutes: expected a number, found " + found])

    def test_what_cannot_be_printed_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        for command in ("--help", "list models", "pack wlb-128k --policy plain --steps 2 --format json", "profiles show cpu"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([PROGRAM, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            self.assertEqual((result.returncode, result.stderr), (2, "error: standard output: cannot be written\n"), command)
        for device in ("stdout", "full"):
            (self.folder / device).symlink_to("/dev/" + device)
        synth = ("trace", "synth", "--distribution", "wlb-128k", "--documents", 9, "--out")
        self.assertEqual(len(self.ok(*synth, self.folder / "stdout").splitlines()), 9)
        self.refused(*synth, self.folder / "full", says=["full: cannot write: No space left on device"])

    def test_lists(self):
        self.assertIn("wlb-llm", self.ok("list", "policies"))
        models = json.loads(self.ok("list", "models", "--format", "json"))
        self.assertIn("llama3.1-405b", json.dumps(models))
        self.assertEqual(self.ok("profiles", "list"), self.ok("profiles"))
        profiles = {p["name"]: p["kernels"] for p in json.loads(self.ok("profiles", "list", "--format", "json"))}
        self.assertLessEqual({"cpu": "measured", "h100-sxm": "published", "h800-sxm": "derived", "a100-sxm": "derived", "h20": "derived", "b200-sxm": "derived", "gb200-nvl72": "derived",
                              "gb300-nvl72": "derived", "mi300x": "derived"}.items(), profiles.items())
        for what in ("schedules", "profiles", "traces"):
            self.assertGreaterEqual(len(self.ok("list", what).splitlines()), 2)
        self.refused("list", "polices", says=["polices"])
        self.refused("list", says=["equipoise list: what is required: policies, schedules, models, profiles, frameworks, traces or schema ("])
        self.refused("study", says=["study: expected a study file, or --model and --gpus, found neither"])


class Explain(Case):
    def test_a_word_is_what_its_tables_say(self):
        self.assertEqual(self.ok("explain", "parallel.context"), "parallel.context, key of a study: CP: GPUs that share the tokens of a "
                         "micro-batch\n  values: 1 .. 4194304\n  default: 1\n")
        self.assertEqual(self.ok("explain", "chunkflow.chunk-size"), "chunkflow.chunk_size, option of chunkflow: chunkflow: tokens of a chunk; auto: the fastest that fits of "
                         "1/16, 1/8 .. 1 window; 8K by default, auto in a study whose row has no keep either\n"
                         "  values: 1 .. 2147483648\n  default: 8192\n  source: ChunkFlow Alg. 1, arXiv 2503.02356\n")
        self.assertEqual(self.ok("explain", "cluster.network.nic_GBps"), "cluster.network.nic_GBps, key of a study: Rate of one GPU's NIC, one "
                         "direction; the profile's by default\n  values: 0.001 .. 1000000\n  unit: GB/s\n")
        self.assertEqual(self.ok("explain", "step s"), "step_seconds, column of a result: mean of the full steps\n  unit: s\n")
        self.assertEqual(self.ok("explain", "policies.0.queues"), self.ok("explain", "queues"))

    def test_a_word_of_several_tables_prints_each(self):
        found = json.loads(self.ok("explain", "wlb-128k", "--format", "json"))
        self.assertEqual([entry["kind"] for entry in found], ["distribution"])
        found = json.loads(self.ok("explain", "recompute", "--format", "json"))
        self.assertEqual([entry["name"] for entry in found], ["parallel.recompute", "policies[].recompute"])
        self.assertEqual(found[0]["values"], "none, selective, full, auto or object")

    def test_every_listed_name_and_every_key_is_explained(self):
        words = {entry["name"] for entry in json.loads(self.ok("explain", "--format", "json"))}
        for what in ("policies", "schedules", "models", "profiles", "frameworks", "traces"):
            for row in json.loads(self.ok("list", what, "--format", "json")):
                self.assertIn(row["name"], words)
                for key, option in row.get("options", {}).items():
                    (entry,) = json.loads(self.ok("explain", f"{row['name']}.{key}", "--format", "json")) if key == "queues" else [None]
                    self.assertIn(f"{row['name']}.{key}", words)
                    if entry:
                        self.assertEqual(entry["default"], str(option["default"]))
        schema = json.loads(self.ok("list", "schema"))
        for key, value in schema["properties"]["parallel"]["properties"].items():
            self.assertIn("parallel." + key, words)
        self.assertEqual(schema["properties"]["batch"]["properties"]["micro_batch_size"]["default"], 1)
        columns = (SOURCE / "docs/reference/columns.md").read_text()
        for key in re.findall(r"^\|[^|]*\| `(.*?)`", columns, re.MULTILINE):
            self.assertIn(key, words)

    def test_every_word_that_a_key_may_be_is_explained(self):
        found = json.loads(self.ok("explain", "--format", "json"))
        values = [entry for entry in found if entry["kind"].startswith("value of ")]
        self.assertEqual([f"{e['kind']}: {e['name']}" for e in values if not e["what"]], [])
        of_key = {entry["kind"].removeprefix("value of "): 0 for entry in values}
        for entry in found:  # each key whose values are words has them all
            if entry["kind"] == "key of a study" and re.fullmatch(r"[a-z][a-z0-9-]*(, [a-z][a-z0-9-]*)+( or object)?", entry["values"] or "") and entry["values"] != "true, false":
                words = entry["values"].removesuffix(" or object").split(", ")
                self.assertEqual([v["name"] for v in values if v["kind"] == "value of " + entry["name"]], words)
                of_key.pop(entry["name"])
        self.assertEqual(list(of_key), ["frozen", "parallel.recompute.modules", "policies[].recompute.modules"])
        self.assertIn("ulysses, value of parallel.context_comm: an all-to-all gives a rank all tokens of some heads\n", self.ok("explain", "ulysses"))
        self.assertIn("group-cast", self.ok("explain", "group-cast"))
        self.assertIn("skrull-solver", self.ok("explain", "policies[].bucket_size"))

    @staticmethod
    def keys_of(node, path=""):
        """Paths of all that a summary holds but what other tables have, or names of rows."""
        if path in ("metrics", "notes", "study.notes", "study.settings", "receipt.study", "receipt.options", "receipt.rows", "receipt.written.rows", "reasons", "needs"):
            return {path}
        if path.startswith("receipt.inputs./"):
            return {"receipt.inputs.FILE"}
        if isinstance(node, list) and node and isinstance(node[0], dict):
            return set().union(*(Explain.keys_of(one, path and path + "[]") for one in node))
        if not isinstance(node, dict):
            return {path}
        return {path.removesuffix("[]")} - {""} | set().union(*(Explain.keys_of(value, f"{path}.{key}".lstrip(".")) for key, value in node.items()))

    def test_every_key_of_a_summary_and_every_file_next_to_it_is_explained(self):
        def saved(name, study, *options):
            self.ok("study", self.write("study.json", study), "--out", self.folder / name, "--quiet", *options)
            return json.loads((self.folder / name / "summary.json").read_text())

        hbp = {"name": "hbp", "published": [{"source": "a paper", "metrics": {"speedup": 1.1}}]}
        auto = dict(STUDY, parallel=STUDY["parallel"] | {"recompute": "auto"}, policies=["plain-4d", "wlb", "skrull", hbp, {"name": "lpt", "schedule": "auto"}],
                    batch={"context_window": "16K", "sequences_per_step": 8, "steps": 2})
        summaries = [saved("auto", auto, "--verify", "--fidelity", "op", "--tokens", "1B"),
                     saved("oom", dict(STUDY, policies=["plain", {"name": "plan", "file": str(self.folder / "auto/plan.json"), "policy": "wlb"}], baseline="plain"),
                           "--set", "cluster.memory_GB=2", "--ignore-memory"),
                     saved("own", dict(STUDY, cluster={"profile": "cpu"}, framework="execution", parallel={"context": 2}))]
        late = ("--set", "batch.steps=24", "--max-delay", 0.5,  # faster rows are passed over
                "--set", 'framework.anchor={"row": "plain-4d", "seconds": 7.7, "factor": 1}')
        self.ok("study", SOURCE / "traces/studies/7b-128k.json", *late, "--out", self.folder / "late", "--quiet")
        summaries.append(json.loads((self.folder / "late" / "summary.json").read_text()))
        found = set()
        for summary in summaries:
            rows = summary.pop("policies")
            found |= self.keys_of(rows) | self.keys_of(summary)
        entries = json.loads(self.ok("explain", "--format", "json"))
        known = {entry["name"] for entry in entries if entry["kind"] == "key of summary.json"}
        self.assertEqual(found - known, set())
        self.assertEqual(known - found, {"case", "incomplete"})  # of a sweep's, and of a study that the user ended
        files = {entry["name"] for entry in entries if entry["kind"] == "file of study --out"}
        there = {path.name if path.parent.name == "auto" else path.parent.name + "/LABEL" + path.suffix
                 for path in (self.folder / "auto").rglob("*") if path.is_file()}
        self.assertEqual(there - files, set())
        self.assertEqual(files - there, {"sweep.csv", "seeds.csv", "chakra/LABEL/step.GPU.et"})
        for word, says in (("provenance.slowdowns", "carried"), ("critical_path", "op fidelity"), ("logits", "unit: bytes"), ("status", "oom")):
            self.assertIn(says, self.ok("explain", word))
        self.refused("explain", "provenance.slowdown", says=["nearest: provenance.slowdowns"])

    def test_unknown_words_have_their_nearest(self):
        self.refused("explain", "paralel.contxt", says=['unknown word "paralel.contxt"', "nearest: parallel.context"])
        self.refused("explain", "qqqqqqqqqq", says=["expected a key of a study, a column, a policy"])
        self.refused("explain", "wlb", "--format", "csv", says=["allowed: table, json"])
        self.assertRegex(self.ok("explain"), r"(?m)^packing policy +\d+  \S+$")


class StudyCommand(Case):
    def test_formats(self):
        study = self.write("study.json", STUDY)
        table = self.ok("study", study)
        self.assertIn("tokens/s/GPU", table)
        self.assertRegex(table, r"(?m)^Fastest   plain-4d, ")
        summary = json.loads(self.ok("study", study, "--format", "json"))
        self.assertEqual(summary["schema"], "equipoise.summary/1")
        self.assertEqual(summary["baseline"], "plain-4d")
        self.assertEqual([p["name"] for p in summary["policies"]], ["plain-4d", "wlb"])
        for policy in summary["policies"]:
            self.assertEqual(policy["status"], "ok")
            self.assertEqual(policy["metrics"]["total_tokens"], 3 * 4 * 16384)
            self.assertIn("pack_ms", policy["measured"])
        rows = list(csv.DictReader(io.StringIO(self.ok("study", study, "--format", "csv"))))
        self.assertEqual([row["policy"] for row in rows], ["plain-4d", "wlb"])
        self.assertAlmostEqual(float(rows[0]["speedup"]), 1, places=12)
        for row, policy in zip(rows, summary["policies"]):
            self.assertEqual(float(row["step_seconds"]), policy["metrics"]["step_seconds"])

    def test_jobs_do_not_change_results(self):
        study = self.write("study.json", STUDY)
        results = []
        for jobs in (1, 2, 3):
            summary = json.loads(self.ok("study", study, "--format", "json", "--jobs", jobs))
            for policy in summary["policies"]:
                del policy["measured"]
            results.append(summary)
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])

    def test_a_row_label_with_a_comma_stays_one_csv_cell(self):
        named = dict(STUDY, policies=["plain", {"name": "lpt", "label": 'longest, "first"'}], baseline="plain")
        study = self.write("study.json", named)
        rows = list(csv.DictReader(io.StringIO(self.ok("study", study, "--format", "csv"))))
        self.assertEqual([row["policy"] for row in rows], ["plain", 'longest, "first"'])
        self.assertEqual({row["status"] for row in rows}, {"ok"})
        self.ok("study", study, "--out", self.folder / "out")
        with open(self.folder / "out" / "steps.csv", newline="", encoding="utf-8") as file:
            self.assertEqual({row["policy"] for row in csv.DictReader(file)}, {"plain", 'longest, "first"'})

    def test_out_writes_summary_steps_and_plan(self):
        study = self.write("study.json", STUDY)
        self.ok("study", study, "--out", self.folder / "new" / "out")
        out = self.folder / "new" / "out"
        self.assertLessEqual({"plan.json", "steps.csv", "summary.json"}, {p.name for p in out.iterdir()})
        self.assertEqual([p.name for p in (self.folder / "new").iterdir()], ["out"])  # no temporary left
        summary = json.loads((out / "summary.json").read_text())
        plans = json.loads((out / "plan.json").read_text())
        self.assertEqual([p["name"] for p in plans["plans"]], ["plain-4d", "wlb"])
        for plan in plans["plans"]:
            self.assertEqual(plan["schema"], "equipoise.plan/1")
            tokens = sum(e - b for s in plan["steps"] for l in s["lanes"] for m in l["micro_batches"] for _, b, e in m["slices"])
            self.assertEqual(tokens, summary["study"]["tokens"])
            self.assertEqual({m["recompute_layers"] for s in plan["steps"] for l in s["lanes"] for m in l["micro_batches"]}, {0})
        with open(out / "steps.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(sum(int(r["tokens"]) for r in rows if r["policy"] == "wlb"), summary["study"]["tokens"])

    def test_energy_is_shown_where_watts_are_known(self):
        kinds = ("attention_W", "gemm_W", "memory_W", "communication_W", "idle_W")
        even, idle = (dict(STUDY, cluster={"watts": dict.fromkeys(kinds, 500) | {"idle_W": watts}}) for watts in (500, 100))
        rows = {name: json.loads(self.ok("study", self.write(f"{name}.json", study), "--format", "json"))["policies"]
                for name, study in {"none": STUDY, "even": even, "idle": idle}.items()}
        for none, all_alike, waiting in zip(*rows.values()):
            self.assertIsNone(none["metrics"]["joules_per_token"])
            metrics = all_alike["metrics"]
            self.assertAlmostEqual(metrics["watts_per_gpu"], 500)
            self.assertAlmostEqual(metrics["joules_per_token"], 500 / metrics["tokens_per_second_per_gpu"])
            self.assertTrue(100 < waiting["metrics"]["watts_per_gpu"] < 500)
        self.assertIn("J/token", self.ok("study", self.folder / "even.json", "--wide"))
        self.assertNotIn("J/token", self.ok("study", self.folder / "none.json", "--wide"))
        profile = json.loads((SOURCE / "profiler/profiles/h100-sxm.json").read_text())
        profile["power"] = even["cluster"]["watts"] | {"provenance": {"kind": "measured", "source": "a hand"}}
        own = dict(STUDY, cluster={"profile": str(self.write("p.json", profile))})
        self.assertIn("J/token", self.ok("study", self.write("own.json", own), "--wide"))
        del profile["power"]["idle_W"]
        self.write("p.json", profile)
        self.refused("study", self.folder / "own.json", says=("p.json", "power.idle_W: expected"))

    def test_nothing_partial_is_left_behind(self):
        bad = self.write("study.json", dict(STUDY, trace={"uniform": 8192, "documents": 12}))  # found while running
        self.refused("study", bad, "--out", self.folder / "out", "--set", "batch.steps=99", says=["study.json", "too short"])
        self.assertEqual([p.name for p in self.folder.iterdir()], ["study.json"])
        blocked = self.write("file", "in the way")
        good = self.write("good.json", STUDY)
        self.refused("study", good, "--out", blocked / "out", says=["--out"])
        self.refused("study", good, "--out", blocked, says=["--out", "expected a folder, found a file"])
        there = self.folder / "there"  # may be a mount: nothing is staged outside it
        there.mkdir()
        (there / "notes.txt").write_text("mine")
        self.refused("study", bad, "--set", "batch.steps=99", "--out", there, says=["study.json", "too short"])
        self.assertEqual([p.name for p in there.iterdir()], ["notes.txt"])
        self.ok("study", good, "--out", there)
        self.assertLessEqual({"notes.txt", "summary.json"}, {p.name for p in there.iterdir()})
        self.assertFalse([p.name for p in there.iterdir() if "partial" in p.name])

    def test_timeline_selections_exist(self):
        study = self.write("study.json", STUDY)
        for option, found in (("--timeline-steps", -1), ("--timeline-lanes", 2), ("--timeline-ranks", -1), ("--timeline-stages", 2)):
            self.refused("study", study, option, found, says=[option, found])
        for found in ("some", "0,", "1.5"):
            self.refused("study", study, "--timeline-lanes", found, says=["--timeline-lanes", "numbers", "all", found])

    def test_op_timelines_are_of_one_lane_and_stage_unless_asked_for_more(self):
        study = self.write("study.json", dict(STUDY, parallel=dict(STUDY["parallel"], data=2)))
        sizes = {}
        for name, options in (("first", ()), ("all", ("--timeline-lanes", "all", "--timeline-stages", "all")),
                              ("gzip", ("--timeline-gzip",)), ("last", ("--timeline-lanes", "1", "--timeline-stages", "1"))):
            out = self.folder / name
            self.ok("study", study, "--fidelity", "op", "--out", out, "--quiet", *options)
            file = out / "timeline" / ("wlb.pftrace.gz" if name == "gzip" else "wlb.pftrace")
            content = gzip.decompress(file.read_bytes()) if name == "gzip" else file.read_bytes()
            sizes[name] = len(content)
            lanes = {lane for lane in (0, 1) if b"lane %d" % lane in content}
            self.assertEqual(lanes, {"all": {0, 1}, "last": {1}}.get(name, {0}))
            self.assertEqual({s for s in (0, 1) if re.search(rb"stage %d(?!:)" % s, content)}, {"all": {0, 1}, "last": {1}}.get(name, {0}))
            if name == "gzip":
                self.assertEqual(content, (self.folder / "first" / "timeline" / "wlb.pftrace").read_bytes())
                self.assertLess(file.stat().st_size, len(content) / 3)
        self.assertGreater(sizes["all"], 3 * sizes["first"])

    def test_memory_can_be_ignored(self):
        study = self.write("study.json", dict(STUDY, model="llama3.1-405b"))
        rows = json.loads(self.ok("study", study, "--ignore-memory", "--format", "json"))["policies"]
        for row in rows:
            self.assertEqual((row["status"], row["memory_ignored"]), ("oom", True))
            self.assertGreater(row["metrics"]["step_seconds"], 0)
        self.ok("study", study, "--ignore-memory", "--out", self.folder / "out")

    def test_layers_that_are_stated_for_model_chunks_keep_them(self):
        chunks = {"parallel": {"tensor": 2, "pipeline": 2, "virtual_pipeline": 2, "data": 2, "stage_layers": [2, 4, 4, 6]},
                  "policies": ["plain-4d", {"name": "hbp", "groups": "16K:1"}, {"name": "plain", "virtual_pipeline": "auto"}]}
        result = json.loads(self.ok("study", self.write("study.json", dict(STUDY, **chunks)), "--format", "json", "--quiet"))
        plain, hbp, auto = result["policies"]
        self.assertEqual(auto["metrics"]["step_seconds"], plain["metrics"]["step_seconds"])
        self.assertNotIn("virtual_pipeline", hbp["provenance"].get("derived", {}))

    def test_rows_run_at_their_best(self):
        # As the Python README compares them: fixed chunks of 8K were 0.23x there, and three rows did not run at all.
        policies = json.dumps([{"name": "plain-4d", "virtual_pipeline": 1}, "chunkflow", "hbp", "skrull"])
        study = SOURCE / "traces/studies/7b-128k.json"
        found = json.loads(self.ok("study", study, "--set", f"policies={policies}", "--set", "batch.steps=3", "--format", "json", "--quiet"))
        rows = {row["label"]: row for row in found["policies"]}
        self.assertEqual({row["status"] for row in rows.values()}, {"ok"})
        self.assertGreater(rows["chunkflow"]["metrics"]["speedup"], 0.97)
        derived = rows["chunkflow"]["provenance"]["derived"]
        self.assertEqual(derived["virtual_pipeline"], 1)
        self.assertGreater(derived["chunk_size"], 8192)
        self.assertIn("keep", derived)
        # The screen says what was chosen, where there is room.
        shown = self.ok("study", study, "--set", f"policies={policies}", "--set", "batch.steps=3", "--quiet")
        self.assertRegex(shown, rf"(?m)^chunkflow \(chunk_size {derived['chunk_size'] // 1024}K, keep {derived['keep']}, PP 4 x 1\)  ")
        self.assertNotRegex(shown, r"(?m)^plain-4d \(")

    def test_out_of_memory_is_a_row(self):
        study = self.write("study.json", dict(STUDY, model="llama3.1-405b"))
        summary = json.loads(self.ok("study", study, "--format", "json"))
        self.assertEqual({p["status"] for p in summary["policies"]}, {"oom"})
        for row in summary["policies"]:
            self.assertIn("GiB", row["reason"])
            self.assertEqual(row["label"], row["name"])
        out = self.folder / "out"
        self.ok("study", study, "--out", out, "--fidelity", "op", "--quiet")
        self.assertEqual(len((out / "steps.csv").read_text().splitlines()), 1)
        self.assertIn("is out of memory", self.ok("study", study))

    def test_bad_input(self):
        study = self.write("study.json", STUDY)
        self.refused("study", self.folder / "none.json", says=["none.json", "cannot be read"])
        self.refused("study", self.write("cut.json", '{"trace": {"uni'), says=["cut.json:1: not JSON"])
        self.refused("study", self.folder, says=["found a folder, expected a file"])
        self.refused("study", study, "--set", 'model={"hf_config": "."}', says=["found a folder, expected a file"])
        self.refused("study", study, "--set", "policies.1=plain", "--set", "batch.documents_per_step=1M", "--set", "batch.steps=1M",
                     "--max-memory-GB", 1000000, says=["documents", "268435456"])
        self.refused("study", study, "--set", "modle=x", says=["study.json", "modle", "model"])
        self.refused("study", study, "--set", "policies.0=wlbb", says=["study.json", "policies[0]", "wlbb", "wlb"])
        self.refused("study", study, "--set", "parallel.tensor=5", says=["study.json", "parallel.tensor", "12 heads", "5"])
        self.refused("study", study, "--set", "trace={\"file\": \"none.txt\"}", says=["study.json", "none.txt"])
        self.refused("study", study, "--set", "trace={\"uniform\": 99, \"documents\": 9}", says=["study.json", "too short"])
        self.refused("study", study, "--set", "cluster.profile=h100", says=["study.json", "h100"])
        self.refused("study", study, "--format", "xml", says=["--format", "xml"])


class PackCommand(Case):
    def test_plan_json_conserves_tokens(self):
        for policy in ("plain", "wlb", "fixed-greedy", "chunkflow", "lpt"):
            self.assertIn("pack ms", self.ok("pack", "wlb-128k", "--policy", policy, "--steps", 5))
            plan = json.loads(self.ok("pack", "wlb-128k", "--policy", policy, "--steps", 5, "--format", "json"))
            self.assertEqual(plan["schema"], "equipoise.plan/1")
            self.assertEqual(plan["policy"], policy)
            tokens, seen = 0, {}
            for step in plan["steps"]:
                for lane in step["lanes"]:
                    for micro_batch in lane["micro_batches"]:
                        held = 0
                        self.assertEqual(micro_batch["recompute_layers"], 0)
                        for document, begin, end in micro_batch["slices"]:
                            self.assertLess(begin, end)
                            seen.setdefault(document, []).append((begin, end))
                            held += end - begin
                        self.assertEqual(held, micro_batch["tokens"])
                        tokens += held
            self.assertEqual(tokens, 5 * 4 * 131072, policy)
            for ranges in seen.values():  # no token twice
                ranges.sort()
                self.assertTrue(all(a[1] <= b[0] for a, b in zip(ranges, ranges[1:])), policy)

    def test_options_without_effect_are_noted_and_dropped_tokens_counted(self):
        # Packs of 10 tokens: the document of 12 is above them. The 3 documents of the one step hold 20 tokens, so 2 or 3
        # packs hold a global batch.
        trace = self.write("trace.txt", "4\n12\n4\n")
        shape = ("--context-window", 10, "--documents-per-step", 3, "--sequences-per-step", 1)
        idle = "note: batch.sequences_per_step has no effect with documents_per_step on {}: documents come whole"
        unequal = " tokens than 3 documents on the mean, as near as whole packs on these lanes come; a smaller pack length comes nearer"
        def notes(*more):
            result = run("pack", trace, *shape, *more)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stderr.splitlines()
        self.assertEqual(notes("--policy", "ffd", "--oversize", "drop"), [
            idle.format("ffd"), "note: ffd: 1 slices with 12 tokens dropped (--oversize)",
            "note: ffd: iterations of 3 packs hold 20.0 % more" + unequal])  # one pack of 4 + 4, 2.5 of them are 20
        self.assertEqual(notes("--policy", "isf", "--oversize", "truncate", "--chunk-size", 4), [
            "note: chunk_size has no effect on isf", idle.format("isf"),
            "note: isf: 1 slices with 2 tokens dropped (--oversize)",
            "note: isf: iterations of 2 packs hold 10.0 % fewer" + unequal])  # 10 and 4 + 4
        self.assertEqual(notes("--policy", "isf", "--oversize", "split"), [idle.format("isf")])
        # Where there are several policies, one may be meant.
        self.assertEqual(notes("--compare", "isf,lpt", "--oversize", "split", "--rounds", 3), [
            idle.format("isf"), "note: batch.sequences_per_step 1 with documents_per_step: no size of a step, but the fewest "
            "micro-batches that it has by default"])
        self.refused("pack", trace, *shape, "--policy", "isf", says=["document 1", "12", "10", "drop"])

    def test_pack_chooses_hbp_groups_by_simulated_time(self):
        plan = json.loads(self.ok("pack", "tulu3-longcite", "--policy", "hbp", "--model", "llama3.1-8b", "--profile", "h100-sxm",
                                  "--context", 4, "--lanes", 2, "--steps", 10, "--context-window", "32K", "--format", "json"))
        groups = {(m["pack_length"] if "pack_length" in m else None, lane["context"])
                  for step in plan["steps"] for lane in step["lanes"] for m in lane["micro_batches"]}
        self.assertGreater(len(groups), 1)

    def test_a_packed_plan_is_a_row_of_a_study(self):
        study = {"trace": {"distribution": "wlb-128k", "seed": 3}, "model": "wlb-550m",
                 "parallel": {"context": 2, "pipeline": 2, "data": 2},
                 "batch": {"context_window": "32K", "sequences_per_step": 4, "steps": 3},
                 "policies": ["lpt", {"name": "plan", "file": "plans/lpt.json", "label": "file"}]}
        (self.folder / "plans").mkdir()
        plan = self.ok("pack", "wlb-128k", "--seed", 3, "--policy", "lpt", "--context-window", "32K", "--sequences-per-step", 4,
                       "--steps", 3, "--lanes", 2, "--context", 2, "--model", "wlb-550m", "--profile", "h100-sxm", "--format", "json")
        (self.folder / "plans" / "lpt.json").write_text(plan)
        summary = json.loads(self.ok("study", self.write("study.json", study), "--format", "json"))
        own, file = summary["policies"]
        self.assertEqual((own["status"], file["status"], file["policy"]), ("ok", "ok", "plan"))
        self.assertEqual(file["provenance"]["plan"]["policy"], "lpt")
        for rows in (own, file):
            for key in ("speedup", "speedup_low", "speedup_high"):
                rows["metrics"].pop(key)
        self.assertEqual(own["metrics"], file["metrics"])
        self.assertGreater(file["measured"]["pack_ms"], 0)  # the file has it of each step; without it nothing was measured
        values = json.loads(plan)
        for step in values["steps"]:
            del step["measured"]
        (self.folder / "plans" / "lpt.json").write_text(json.dumps(values))
        summary = json.loads(self.ok("study", self.folder / "study.json", "--format", "json"))
        self.assertIsNone(summary["policies"][1]["measured"]["pack_ms"])
        self.assertRegex(self.ok("study", self.folder / "study.json", "--wide"), r"(?m)^file .* -$")
        # A plan of other documents is a row with its reason; a file that is no plan is an error.
        study["trace"]["seed"] = 4
        rows = json.loads(self.ok("study", self.write("study.json", study), "--format", "json"))["policies"]
        self.assertEqual([row["status"] for row in rows], ["ok", "refused"])
        self.assertIn("lpt.json: does not fit the study: ", rows[1]["reason"])
        (self.folder / "plans" / "lpt.json").write_text('{"schema": "equipoise.plan/9"}')
        self.refused("study", self.folder / "study.json", says=["lpt.json.schema", "equipoise.plan/1", "equipoise.plan/9"])

    def test_pack_order_and_node_limit(self):
        def documents(*more):
            plan = json.loads(self.ok("pack", trace, "--context-window", 4, "--sequences-per-step", 1, "--documents-per-step", 5,
                                      "--format", "json", *more))
            return [m["slices"][0][0] for step in plan["steps"] for lane in step["lanes"] for m in lane["micro_batches"]]
        trace = self.write("trace.txt", "4\n" * 5)
        # The shuffle is derived in tests/policies/test_packers.cpp.
        self.assertEqual(documents("--policy", "ffd"), [2, 3, 1, 4, 0])
        self.assertEqual(documents("--policy", "ffd", "--pack-order", "created"), [0, 1, 2, 3, 4])
        self.assertEqual(documents("--policy", "ffd", "--no-shuffle"), [0, 1, 2, 3, 4])
        self.refused("pack", trace, "--policy", "ffd", "--pack-order", "sorted", says=["pack_order", "shuffled, created", "sorted"])
        self.refused("pack", trace, "--policy", "fixed-solver", "--node-limit", 3, "--time-limit", 1, says=["node_limit", "not both"])

    def test_loader_drop_draws_enough(self):
        plan = json.loads(self.ok("pack", "wlb-128k", "--policy", "plain", "--loader", "drop", "--steps", 3, "--format", "json"))
        self.assertEqual(len(plan["steps"]), 3)

    def test_compare_and_csv(self):
        text = self.ok("pack", "wlb-128k", "--compare", "plain,wlb", "--steps", 3)
        self.assertIn("plain", text)
        self.assertIn("wlb", text)
        rows = list(csv.DictReader(io.StringIO(self.ok("pack", "wlb-128k", "--compare", "plain,wlb", "--steps", 3, "--format", "csv"))))
        self.assertEqual(len(rows), 2)

    def test_bad_lengths_and_limits(self):
        for line, content in (("0", "5\n0\n"), ("-4", "5\n-4\n"), ("1.5", "5\n1.5\n"), ("2147483649", "5\n2147483649\n")):
            trace = self.write("trace.txt", content)
            self.refused("pack", trace, "--policy", "plain", says=["trace.txt", "2", line])
        self.refused("pack", self.write("empty.txt", ""), "--policy", "plain", says=["empty"])
        self.refused("pack", self.folder / "none.txt", "--policy", "plain", says=["none.txt"])
        trace = self.write("short.txt", "100\n200\n")
        self.refused("pack", trace, "--policy", "plain", "--steps", 3, says=["too short"])
        long = self.write("long.txt", "3000\n" * 20)
        self.refused("pack", long, "--policy", "wlb", "--context-window", "4K", "--max-tokens", 1000, says=["3000", "1000"])
        self.refused("pack", long, "--policy", "wlbb", says=["wlbb", "wlb"])
        with mock.patch.dict(os.environ, {"EQUIPOISE_HIGHS": "/none/libhighs.so"}):  # no other is taken in its place
            self.refused("pack", "wlb-128k", "--policy", "fixed-solver", "--solver", "highs", "--steps", 1,
                         says=["EQUIPOISE_HIGHS", "/none/libhighs.so"])
        self.refused("pack", long, "--policy", "wlb", "--queues", "many", says=["queues", "many"])


class OtherCommands(Case):
    def test_shard(self):
        chosen = json.loads(self.ok("shard", "--lengths", "5000,3000", "--cp", 4, "--policy", "per-document", "--format", "json"))
        self.assertEqual(sum(rank["tokens"] for rank in chosen["ranks"]), 8000)
        pairs = 5000 * 5001 // 2 + 3000 * 3001 // 2
        self.assertEqual(sum(rank["pairs"] for rank in chosen["ranks"]), pairs)
        # 8 pairs on the slowest rank either way (tests/policies/test_sharding.cpp): a tie takes per-sequence.
        tie = self.ok("shard", "--lengths", "2,3,3", "--cp", 2, "--policy", "adaptive", "--tile", 1, "--format", "json")
        self.assertEqual(json.loads(tie)["chosen"], "per-sequence")
        self.refused("shard", "--lengths", "5,4", "--cp", 4, "--policy", "per-sequence", says=["8", "9"])
        self.refused("shard", "--lengths", "5,x", "--cp", 4, "--policy", "per-sequence", says=["--lengths", "x"])

    def test_schedule(self):
        drawn = json.loads(self.ok("schedule", "--schedule", "1f1b", "--stages", 4, "--lengths", "4,2,1,1", "--format", "json"))
        self.assertEqual(drawn["makespan"], 56)
        self.assertAlmostEqual(drawn["bubble_ratio"], 1 - 24 / 56, places=12)
        self.refused("schedule", "--schedule", "1f2b", "--stages", 4, "--lengths", "1", says=["1f2b"])

    def test_trace_info(self):
        trace = self.write("trace.txt", "1\n2\n3\n")
        self.assertIn("3", self.ok("trace", "info", trace))
        self.refused("trace", "info", self.write("bad.txt", "1\nx\n"), says=["bad.txt", "2"])


if __name__ == "__main__":
    unittest.main()

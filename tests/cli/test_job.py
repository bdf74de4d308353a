"""A job by options instead of a study file; the user's own step as anchor; what Ctrl-C leaves of a study."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

from support import PROGRAM, STUDY, Case, run

SOURCE = pathlib.Path(__file__).resolve().parents[2]
JOB = ["--model", "qwen2.5-0.5b", "--gpus", "8", "--window", "8K", "--policies", "plain-4d,fixed-4d"]


class Job(Case):
    def test_init_writes_the_study_that_study_runs(self):
        path = self.folder / "job.json"
        self.ok("init", *JOB, "--out", path)
        study = json.loads(path.read_text())
        degrees = [study["parallel"].get(axis, 1) for axis in ("tensor", "context", "pipeline", "data")]
        self.assertEqual(degrees[0] * degrees[1] * degrees[2] * degrees[3], 8)
        self.assertEqual(study["cluster"]["profile"], "h100-sxm")
        few = ["--set", "batch.steps=2", "--format", "json", "--quiet"]
        from_file = json.loads(self.ok("study", path, *few))
        from_options = json.loads(self.ok("study", *JOB, *few))
        self.assertEqual([row["metrics"] for row in from_file["policies"]], [row["metrics"] for row in from_options["policies"]])

    def test_the_first_line_says_whether_it_fits(self):
        first = self.ok("study", *JOB, "--set", "batch.steps=2").splitlines()[0]
        self.assertRegex(first, r"^It fits on 8 GPUs: TP \d+, CP \d+, PP \d+.*, DP \d+, recompute \w+, [\d.]+ GiB free; ")
        self.assertLessEqual(len(first), 110)
        large = self.ok("study", "--model", "llama3.1-70b", "--gpus", "8", "--window", "8K")
        self.assertIn("does not fit on 8 GPUs with any layout; it fits on ", large.splitlines()[0])

    def test_a_size_from_memory_keeps_its_headroom(self):
        """Per-sequence sharding pads a pack to an even number of tokens on one rank, too, which an odd L_max forgot."""
        job = ["--model", "qwen3-8b", "--gpus", "32", "--window", "32K", "--policies", "plain-4d,wlb-llm"]
        rows = json.loads(self.ok("study", *job, "--format", "json", "--quiet"))["policies"]
        self.assertEqual([row["memory_tight"] for row in rows], [False, False])
        self.assertLess(rows[1]["memory"]["capacity_bytes"] * 0.93, rows[1]["memory"]["peak_bytes"])

    def test_what_was_not_said_is_named_and_nothing_else(self):
        two = run("study", *JOB[:2], "--gpus", 16, *JOB[4:], "--set", "batch.steps=2").stderr
        self.assertIn("Not said, so assumed: documents of mixed, 512 windows per step, framework megatron, ZeRO 1, bf16, "
                      "50 GB/s per GPU between nodes, all weights trained.", two)
        typed = run("study", *JOB, "--framework", "fsdp", "--trace", "mixed", "--set", "batch.steps=2", "--set", "precision=fp8").stderr
        self.assertRegex(typed, r"Not said, so assumed: [\d,]+ windows per step, ZeRO 3, all weights trained\.")
        set_to = ["--set", 'trace={"uniform": 8192}', "--set", "batch.steps=2", "--set", "batch.sequences_per_step=64",
                  "--set", "parallel.zero=2", "--sweep", "cluster.network.nic_GBps=25,50"]
        said = run("study", *JOB[:2], "--gpus", 16, *JOB[4:], *set_to).stderr
        self.assertIn("Not said, so assumed: framework megatron, bf16, all weights trained.", said)
        for typed in ([], ["--window", "32K"]):  # the default, typed or not
            said = run("study", *JOB[:4], *JOB[6:], *typed, "--set", "batch.steps=2").stderr
            self.assertEqual("windows of 32,768 tokens" in said, not typed)

    def test_fsdp_alone_has_no_pipeline(self):
        """Neither does its layout, which would be PP 2 x 2 if the preset had a pipeline."""
        job = ["study", "--model", "qwen3-8b", "--gpus", "8", *JOB[6:], "--trace", "tulu3-longcite", "--set", "batch.steps=2"]
        self.assertIn("PP 1,", self.ok(*job, "--framework", "fsdp").splitlines()[0])
        study = self.write("study.json", dict(STUDY, framework="fsdp", policies=["plain"], baseline="plain"))
        runs_in = lambda pipeline: json.loads(self.ok("study", study, "--set", f"parallel.pipeline={pipeline}", "--format", "json", "--quiet"))["policies"][0]["runs_in"]
        self.assertEqual([runs_in(pipeline) for pipeline in (1, 2)], ["yes", "no"])

    def test_the_baseline_is_what_the_framework_does(self):
        options = [*JOB[:-2], "--set", "batch.steps=2", "--format", "json", "--quiet"]
        for framework, shard in (("megatron", "per-document"), ("torchtitan", "per-sequence")):
            first = json.loads(self.ok("study", *options, "--framework", framework))["policies"][0]
            self.assertEqual((first["policy"], first["shard"], first["runs_in"]), ("plain", shard, "yes"))

    def test_layers_with_experts_are_eager_and_the_note_says_so(self):
        job = ["study", "--model", "qwen3-30b-a3b", "--gpus", "8", "--window", "8K", "--policies", "plain-4d", "--set", "batch.steps=1"]
        for typed, chosen in (([], "megatron-eager"), (["--framework", "megatron"], "megatron")):
            done = run(*job, *typed)
            self.assertIn(f"framework {chosen}, simulated", done.stdout)
            fits, head = done.stdout.splitlines()[:2]
            self.assertIn(re.search(r", EP \d+", fits).group(0), head)
            self.assertEqual(f"framework {chosen}, ZeRO 1, bf16" in done.stderr, not typed)

    def test_a_short_trace_makes_small_batches_and_is_said_to_be_read_again(self):
        lengths = self.write("sft.txt", "\n".join(str(500 + 37 * i % 3000) for i in range(600)))  # 1.2M tokens
        done = run("study", *JOB, "--trace", lengths, "--format", "json", "--quiet")
        study = json.loads(done.stdout)["study"]
        self.assertEqual(study["settings"]["batch"]["sequences_per_step"], 16)  # 8 steps of them are in the trace
        self.assertNotIn("are read", done.stderr)
        few = self.write("few.txt", "\n".join(str(500 + 37 * i) for i in range(20)))
        self.assertRegex(run("study", *JOB, "--trace", few, "--format", "json", "--quiet").stderr,
                         r"warning: the trace's 20 documents are read \d+\.\d times, so that intervals count copies as other documents")
        self.refused("init", "--model", "llama3.1-70b", "--gpus", "8", "--window", "8K", says=["does not fit on 8 GPUs"])

    def test_what_is_missing_is_named(self):
        self.refused("study", says=["a study file, or --model and --gpus"])
        self.refused("study", "--model", "qwen2.5-0.5b", says=["--gpus"])
        self.refused("study", self.write("study.json", STUDY), "--policies", "plain-4d", says=["--policies", "--model"])
        self.refused("study", *JOB, "--gpu", "z9000", says=["--gpu", "h100-sxm", "z9000"])
        self.refused("study", *JOB, "--trace", "nowhere", says=["--trace", "list traces", "nowhere"])
        self.refused("init", says=["--model"])


class RunScript(Case):
    """What run.sh gives the program: everything but the study's words is a stub here."""

    def words(self, *arguments):
        tools = self.folder / "tools"
        if not tools.exists():
            tools.mkdir()
            for tool in ("bash", "dirname", "basename", "mkdir", "sed", "cat"):
                (tools / tool).symlink_to(shutil.which(tool))
            program = self.folder / "build/release/bin/equipoise"
            program.parent.mkdir(parents=True)
            for script, text in ((tools / "cmake", ""), (program, 'printf "%s\\n" "$@"\n')):
                script.write_text(f"#!{shutil.which('bash')}\n{text}")
                script.chmod(0o755)
            shutil.copy(SOURCE / "run.sh", self.folder / "run.sh")
        done = subprocess.run([shutil.which("bash"), self.folder / "run.sh", "study", *arguments], capture_output=True, text=True,
                              env={"PATH": str(tools)}, check=True)
        return done.stdout.split()

    def test_the_commands_of_the_readme(self):
        first = "traces/studies/first-study.json"
        self.assertEqual(self.words(), ["study", first, "--out", "out/first-study"])
        self.assertEqual(self.words("--quiet"), ["study", first, "--out", "out/first-study", "--quiet"])
        self.assertEqual(self.words("my.json", "--out", "x"), ["study", "my.json", "--out", "x"])
        for line in re.findall(r"^\./run\.sh study (--model[^#]*)", (SOURCE / "README.md").read_text(), re.MULTILINE):
            self.assertEqual(self.words(*line.split()), ["study", "--out", "out/job", *line.split()])
        self.assertEqual(self.words("--model=m", "--gpus", "8"), ["study", "--out", "out/job", "--model=m", "--gpus", "8"])


    def test_help_of_a_verb_builds_nothing(self):
        tools = self.folder / "tools"
        tools.mkdir()
        for tool in ("bash", "dirname", "sed", "grep", "python3"):  # neither cmake nor apt
            (tools / tool).symlink_to(shutil.which(tool))
        verbs = re.findall(r"^#   \./run\.sh (\w+)", (SOURCE / "run.sh").read_text(), re.MULTILINE)
        self.assertGreater(len(verbs), 9)
        for words in [["--help"], *([verb, "--help"] for verb in verbs), ["study", "my.json", "-h"]]:
            done = subprocess.run([shutil.which("bash"), SOURCE / "run.sh", *words], capture_output=True, text=True, env={"PATH": str(tools)}, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)
            self.assertIn(words[0] if words[0] in verbs else "./run.sh study", done.stdout)


class Anchor(Case):
    def seconds(self, path, *options):
        result = json.loads(self.ok("study", path, "--format", "json", "--quiet", *options))
        return {row["label"]: row["metrics"]["step_seconds"] for row in result["policies"]}, result

    def test_the_measured_row_takes_as_long(self):
        path = self.write("study.json", STUDY)
        plain, _ = self.seconds(path)
        measured = 1.25 * plain["plain-4d"]
        anchored, result = self.seconds(path, "--measured-step", measured)
        self.assertAlmostEqual(anchored["plain-4d"] / measured, 1, delta=1e-5)
        self.assertGreater(anchored["wlb"], plain["wlb"])
        anchor = result["study"]["settings"]["framework"]["anchor"]
        self.assertEqual(anchor["row"], "plain-4d")
        self.assertGreater(anchor["factor"], 1.25)  # the network takes its share, and no factor changes it
        # A step is then as far off as a ratio of two rows, and so is the ratio.
        error = result["policies"][0]["provenance"]["expected_error"]
        self.assertEqual([error[end] for end in ("low", "high")], [error["speed_up"][end] for end in ("low", "high")])
        said = " ".join(self.ok("study", path, "--set", "batch.steps=8", "--measured-step", measured).split())
        self.assertRegex(said, r"90 % of such steps take [\d.]+ to [\d.]+ s, by their ratio to the measured one \(.*: \d+ published ratios of")
        self.assertNotIn("unknown", said.split("Accuracy ")[1])
        other, _ = self.seconds(path, "--measured-step", 0.9 * plain["wlb"], "--row", "wlb")
        self.assertAlmostEqual(other["wlb"] / plain["wlb"], 0.9, delta=1e-5)

    def test_a_log_says_the_step(self):
        path = self.write("study.json", STUDY)
        plain, _ = self.seconds(path)
        log = "step,step_seconds\n" + "".join(f"{step},{1.1 * plain['plain-4d']}\n" for step in range(10, 14))
        anchored, _ = self.seconds(path, "--measured-step", self.write("log.csv", log))
        self.assertAlmostEqual(anchored["plain-4d"] / plain["plain-4d"], 1.1, delta=1e-4)

    def test_a_log_of_another_run_is_warned_of(self):
        path = self.write("study.json", STUDY)
        plain, _ = self.seconds(path)
        lines = [f" [2026-01-01 00:00:00] iteration {step}/ 100 | consumed samples: {4 * step} | elapsed time per iteration (ms): {1100 * plain['plain-4d']} | global batch size: 64 |"
                 for step in range(10, 14)]
        result = run("study", path, "--measured-step", self.write("train.log", "using world size: 512\n" + "\n".join(lines) + "\n"))
        self.assertEqual(result.returncode, 0, result.stderr)
        warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
        self.assertTrue(any("512" in line for line in warnings), result.stderr)
        self.assertTrue(any("64" in line for line in warnings), result.stderr)

    def test_it_holds_for_all_cases(self):
        path = self.write("study.json", STUDY)
        plain, _ = self.seconds(path)
        cases = json.loads(self.ok("study", path, "--format", "json", "--quiet", "--measured-step", 1.1 * plain["plain-4d"],
                                   "--sweep", "parallel.context=1,2"))
        factors = {case["study"]["settings"]["framework"]["anchor"]["factor"] for case in cases}
        self.assertEqual(len(factors), 1)
        # On another layout than the measured one a step is as far off as the ratio of two layouts.
        errors = [case["policies"][0]["provenance"]["expected_error"] for case in cases]
        layouts = [case["study"]["settings"]["parallel"]["context"] for case in cases]
        for context, error in zip(layouts, errors):
            of = "speed_up" if context == STUDY["parallel"]["context"] else "speed_up_of_layouts"
            self.assertEqual([error[end] for end in ("low", "high")], [error[of][end] for end in ("low", "high")], context)
        self.assertLess(errors[0]["speed_up_of_layouts"]["low"], errors[0]["speed_up"]["low"])

    def test_what_no_factor_explains_is_refused(self):
        path = self.write("study.json", STUDY)
        plain, _ = self.seconds(path)
        self.refused("study", path, "--measured-step", 3 * plain["plain-4d"], says=["--measured-step", "plain-4d", "0.5 to 2 times"])
        self.refused("study", path, "--measured-step", 0, says=["--measured-step", "above 0"])
        self.refused("study", path, "--measured-step", 1, "--row", "nobody", says=["--row", "plain-4d, wlb", "nobody"])
        self.refused("study", path, "--set", 'framework.anchor={"row":"wlb"}', says=["framework.anchor.factor"])


class Next(Case):
    def words_that_bash_sees(self, screen):
        """Of each command, which may take several lines."""
        text = screen.split("\nNext ")[1].replace("equipoise ", "printf '%s\\n' --- ")
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return [command.splitlines() for command in done.stdout.split("---\n")[1:]]

    def test_a_command_of_several_lines_is_one_for_a_shell(self):
        label = "a row whose label is as long as a line of the screen, and which has 'quotes' and spaces that belong to it"
        study = self.write("study.json", dict(STUDY, policies=[{"name": "plain", "shard": "per-document", "label": label}], baseline=label))
        commands = self.words_that_bash_sees(self.ok("study", study, "--set", "batch.steps=2", "--set", "cluster.network.nic_GBps=49.5"))
        sets = ["--set", "batch.steps=2", "--set", "cluster.network.nic_GBps=49.5"]
        self.assertEqual(commands, [["export", str(study), *sets, "--row", label, "--for", "megatron"],
                                    ["tune", str(study), *sets, "--max-delay", "1", "--out", "best"]])

    def test_the_commands_can_be_pasted(self):
        screen = self.ok("study", *JOB, "--set", "batch.steps=2")
        self.assertEqual(self.words_that_bash_sees(screen)[0], ["init", *JOB, "--out", "study.json"])
        study = dict(STUDY, policies=["plain-4d", {"name": "wlb", "label": "it's $(a) row", "queues": 2}], baseline="plain-4d")
        screen = " ".join(self.ok("study", self.write("study.json", study), "--set", "parallel.recompute={\"layers\": 2}").split())
        self.assertIn("--set 'parallel.recompute={\"layers\": 2}'", screen)
        if "--row" in screen:
            self.assertNotIn('"it', screen.split("--row")[1])


class JobCost(Case):
    def test_tokens_of_a_job_take_days_hours_and_dollars(self):
        path = self.write("study.json", STUDY)
        options = [path, "--tokens", "2T", "--set", "cluster.dollars_per_gpu_hour=3", "--set", "baseline=wlb"]
        result = json.loads(self.ok("study", *options, "--format", "json", "--quiet"))
        self.assertEqual(result["cost"]["tokens"], 2e12)
        for row, cost in zip(result["policies"], result["cost"]["rows"]):
            self.assertAlmostEqual(cost["gpu_hours"], 2000 * row["metrics"]["gpu_hours_per_billion_tokens"], delta=1e-6 * cost["gpu_hours"])
            self.assertAlmostEqual(cost["days"], cost["gpu_hours"] / 8 / 24, delta=1e-6 * cost["days"])
            self.assertAlmostEqual(cost["dollars"], 3 * cost["gpu_hours"], delta=1e-6 * cost["dollars"])
        line = next(line for line in self.ok("study", *options).splitlines() if line.startswith("Cost"))
        self.assertIn("GPU-hours per billion tokens", line)
        first, base = (next(cost for cost in result["cost"]["rows"] if cost["label"] == label)
                       for label in (result["comparison"]["fastest"], result["baseline"]))
        self.assertNotEqual(first, base)
        both = "; ".join(f"{row['label']} {row['days']:.1f} days, {row['gpu_hours']:,.0f} GPU-hours, ${row['dollars']:,.0f}" for row in (first, base))
        self.assertIn(f"2T tokens: {both}.", " ".join(self.ok("study", *options).split()))
        for wrong in ("2X", "0.5", "1e30", "-3B"):
            self.refused("study", path, "--tokens", wrong, says=["--tokens"])


class Interrupt(Case):
    def test_finished_rows_are_printed_and_written(self):
        slow = {"name": "equipoise", "moves": 1000000000}
        study = dict(STUDY, policies=["plain-4d", "fixed-4d", slow], batch=dict(STUDY["batch"], sequences_per_step=64, steps=4))
        path, out = self.write("study.json", study), self.folder / "out"
        for wait in (1, 2, 4, 8, 16, 32):  # until both rows before the slow one have ended, on this machine
            process = subprocess.Popen([PROGRAM, "study", path, "--out", out, "--jobs", "1"], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, env=dict(os.environ, NO_COLOR="1"))
            time.sleep(wait)
            process.send_signal(signal.SIGINT)
            table, log = process.communicate(timeout=60)
            if "interrupted: 2 of 3 rows" in log:
                break
        self.assertEqual(process.returncode, 130, log)
        self.assertIn("interrupted: 2 of 3 rows finished", log)
        self.assertRegex(table, r"(?m)^equipoise +interrupted")
        self.assertIn("2 of 3 rows ended", " ".join(table.split()))
        self.refused("verify", out / "summary.json", says=["receipt", "interrupted"])
        summary = json.loads((out / "summary.json").read_text())
        self.assertTrue(summary["incomplete"])
        self.assertEqual([row["status"] for row in summary["policies"]], ["ok", "ok", "refused"])
        self.assertEqual(summary["policies"][2]["reasons"][0]["kind"], "interrupted_row")


if __name__ == "__main__":
    unittest.main()

"""A saved result can be traced and run again, and `study --verify` looks at one from the other side."""

import json
import unittest

from support import STUDY, Case, run


class Verify(Case):
    def saved(self, *arguments, study=STUDY):
        out = self.folder / "out"
        self.ok("study", self.write("study.json", study), "--out", out, "--quiet", *arguments)
        return out / "summary.json"

    def found(self, summary):
        result = run("verify", summary, "--format", "json", "--quiet")
        self.assertIn(result.returncode, (0, 1), result.stderr)
        checks = {check["what"]: check["holds"] for check in json.loads(result.stdout)}
        self.assertEqual(result.returncode, 0 if all(checks.values()) else 1)
        return {what for what, holds in checks.items() if not holds}, checks

    def test_a_saved_result_is_run_again(self):
        for arguments in ((), ("--fidelity", "op", "--jitter", "0.05", "--stragglers", "3:0.8"), ("--set", "batch.steps=2")):
            wrong, checks = self.found(self.saved(*arguments))
            self.assertEqual(wrong, set(), arguments)
            self.assertEqual(len(checks), 2 * 2 + 4)  # two rows as written and again; their number, the study, profile, documents

    def test_the_columns_of_its_table_are_text(self):
        lines = self.ok("verify", self.saved(), "--quiet").splitlines()
        column = lines[1].index("holds")
        self.assertEqual({line[column - 2:] for line in lines[1:]}, {"  holds"})

    def test_what_changed_is_named(self):
        trace = self.write("lengths.txt", "\n".join(str(1000 + 37 * i % 9000) for i in range(400)))
        summary = self.saved(study=dict(STUDY, trace={"file": str(trace)}))
        whole = json.loads(summary.read_text())
        whole["policies"][1]["metrics"]["step_seconds"] *= 0.9
        forged = self.write("forged.json", whole)
        self.assertEqual(self.found(forged)[0], {"wlb: as it was written"})
        swapped = json.loads(summary.read_text())
        swapped["policies"].reverse()
        self.assertEqual(self.found(self.write("swapped.json", swapped))[0], {"what it says of the study, as it was written"})
        trace.write_text(trace.read_text().replace("1037", "9999", 1))
        wrong, _ = self.found(summary)
        self.assertEqual(wrong, {"documents, as it is now", "plain-4d: run again", "wlb: run again"})
        del whole["policies"][1]
        self.assertIn("rows of the summary", self.found(self.write("fewer.json", whole))[0])

    def test_every_field_that_was_simulated_is_covered(self):
        """Each number or text of the summary and its receipt that somebody changes is found, but for what was measured here."""
        path = self.saved(study=dict(STUDY, policies=["plain-4d", {"name": "wlb", "queues": 2, "published": {
            "source": "S", "metrics": {"step_seconds": 1}}}]))
        whole = json.loads(path.read_text())
        places = []

        def walk(node, place):
            if isinstance(node, (dict, list)):
                for key, value in node.items() if isinstance(node, dict) else enumerate(node):
                    if place or key != "schema":
                        walk(value, [*place, key])
            elif "measured" not in place and place[2:] not in (["label"], ["name"]):
                places.append(place)

        walk(whole, [])
        by_key = {}
        for place in places:  # one place of a list is like the others
            by_key.setdefault(tuple("*" if isinstance(part, int) else part for part in place), place)
        self.assertGreater(len(by_key), 100)
        for keys in ({"study", "gpus"}, {"study", "tokens"}, {"study", "model"}, {"policies", "shard"}, {"policies", "policy"},
                     {"policies", "gpu_compute_seconds"}, {"policies", "provenance", "predictions"}, {"receipt", "options", "jitter"},
                     {"receipt", "study", "model"}, {"receipt", "program"}):
            self.assertTrue([place for place in by_key if keys <= set(place)], keys)
        saved = {place: by_key[place] for i, place in enumerate(sorted(by_key)) if i % 8 == 0 or "metrics" not in place}
        script = []
        for number, place in enumerate(saved.values()):
            forged = json.loads(path.read_text())
            node = forged
            for part in place[:-1]:
                node = node[part]
            old = node[place[-1]]
            node[place[-1]] = not old if isinstance(old, bool) else old + 1 if isinstance(old, (int, float)) else f"{old}x"
            script.append((place, self.write(f"forged{number}.json", forged)))
        for place, forged in script:
            result = run("verify", forged, "--format", "json", "--quiet")
            self.assertIn(result.returncode, (1, 2), (place, result.stdout, result.stderr))  # 2: no summary any more

    def test_files_that_a_study_names_are_inputs(self):
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256,
                  "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1024,
                  "hidden_act": "silu", "tie_word_embeddings": False}
        path = self.write("config.json", config)
        summary = self.saved(study=dict(STUDY, model={"hf_config": "config.json"}))
        self.assertEqual(self.found(summary)[0], set())
        path.write_text(json.dumps(dict(config, intermediate_size=768)))
        self.assertEqual(self.found(summary)[0], {"config.json, as it is now", "plain-4d: run again", "wlb: run again"})

    def test_a_case_of_a_sweep_is_run_by_the_rule_of_its_table(self):
        out = self.folder / "sweep"
        self.ok("study", self.write("study.json", STUDY), "--sweep", "cluster.profile=h100-sxm,b200-sxm", "--out", out, "--quiet")
        for case in out.iterdir():
            if case.is_dir():
                self.assertEqual(self.found(case / "summary.json")[0], set())

    def test_without_a_receipt(self):
        summary = json.loads(self.saved().read_text())
        receipt = summary.pop("receipt")
        self.refused("verify", self.write("none.json", summary), says=["receipt", "study --out"])
        for key in ("study", "options"):
            broken = dict(summary, receipt={k: v for k, v in receipt.items() if k != key})
            self.refused("verify", self.write("broken.json", broken), says=[f"receipt.{key}"])
        self.refused("verify", self.write("list.json", "[]"), says=["equipoise.summary/1"])
        older = dict(summary, receipt=dict(receipt, hash="fnv1a-64"))
        self.refused("verify", self.write("older.json", older), says=['receipt.hash: expected "sha256/2"', "fnv1a-64"])
        whole = dict(summary, receipt=receipt)
        for key, value in (("label", True), ("metrics", None), ("memory", None), ("status", None)):
            rows = [whole["policies"][0], {**whole["policies"][1], key: value}]
            if value is None:
                del rows[1][key]
            self.refused("verify", self.write("row.json", dict(whole, policies=rows)), says=["policies[1]: expected what `equipoise study --out` writes"])
        rows = [whole["policies"][0], {**whole["policies"][1], "provenance": ""}]
        self.refused("report", self.folder / "out", self.write("row.json", dict(whole, policies=rows)), says=["policies[1]: expected what `equipoise study --out` writes"])

    def test_study_looks_at_its_own_result(self):
        study = self.write("study.json", STUDY)
        result = run("study", study, "--verify", "--format", "csv")
        self.assertEqual(result.returncode, 0, result.stderr)
        for what in ("plan, by the validator", "times, by the engine of the other fidelity", "table, by the sums of its steps",
                     "schedule, op by op", "timeline, by the longest path of a task graph", "memory, counted again"):
            self.assertEqual(result.stderr.count(what), 2, result.stderr)
        self.assertNotIn("DIFFERS", result.stderr)
        self.assertEqual(result.stdout, self.ok("study", study, "--format", "csv"))
        chunks = dict(STUDY, parallel={"zero": 2, "data": 4}, batch={"documents_per_step": 64, "steps": 2}, policies=["chunkflow"], baseline="chunkflow")
        lockstep = run("study", self.write("chunks.json", chunks), "--verify", "--ignore-memory")
        self.assertEqual(lockstep.returncode, 0, lockstep.stderr)  # lanes wait for each other: some have ops of no documents
        self.assertIn("schedule, op by op", lockstep.stderr)
        jittered = run("study", study, "--verify", "--fidelity", "op", "--jitter", "0.1")
        self.assertEqual(jittered.returncode, 0, jittered.stderr)
        self.assertNotIn("the other fidelity", jittered.stderr)
        self.assertEqual(jittered.stderr.count("timeline, by the longest path of a task graph"), 2)


if __name__ == "__main__":
    unittest.main()

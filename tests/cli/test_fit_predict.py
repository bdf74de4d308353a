"""`equipoise fit` and `predict` as a user sees them. EQUIPOISE names the program; ctest sets it."""

import csv
import io
import json
import unittest
from pathlib import Path

from support import Case, run

ROOT = Path(__file__).resolve().parents[2]


class FitCommand(Case):
    def test_runs_of_one_device_are_joined(self):
        """A second run that measured no bandwidth (0) keeps the first one's, and its own facts win."""
        facts = {"name": "one CPU", "memory_bytes": 1e9, "memory_GBps": 20.0, "peak_bf16_tflops": 0.2, "peak_fp8_tflops": 0,
                 "sms": 1, "gpus_per_node": 2, "nvlink_GBps": 0, "nic_GBps": 0, "launch_seconds": 1e-6,
                 "framework_seconds_per_op": 0, "reserve_bytes": 0}
        copies = [{"op": "copy", "bytes": b, "seconds": 1e-6 + b / 20e9, "spread": 0.01} for b in (1 << k for k in range(12, 28))]
        runs = [dict(facts), dict(facts, sms=2, memory_GBps=0.0, launch_seconds=0.0)]
        files = [
            self.write(f"run{i}.json", {"schema": "equipoise.samples/1", "device": device, "samples": {
                "attention": [], "gemm": [], "collective": [], "elementwise": copies[i::2]}})
            for i, device in enumerate(runs)
        ]
        self.ok("fit", *files, "--out", self.folder / "both.json")
        device = json.loads((self.folder / "both.json").read_text())["device"]
        self.assertEqual((device["sms"], device["memory_GBps"], device["launch_seconds"]), (2, 20.0, 1e-6))


    def test_what_pytorch_took_on_an_h200_calibrates_tables_by_kernel(self):
        """The page of these measurements says how far off the tables were; grouped products go to a table of their own."""
        measured = ROOT / "profiler/measured/h200-2026-11-27-torch.json"
        done = run("fit", measured, "--base", "h200-sxm", "--out", self.folder / "calibrated.json")
        self.assertRegex(done.stdout, r"^your samples .*\nattention flash-attention-2 backward +all +33 +6\.8 % .*\nattention flash-attention-2 forward +all +33 +5\.5 % .*\n"
                                      r"gemm bf16-torch-grouped +all +60 ")
        for line in (f"{measured}: 216 samples", "note: gemm/fp8-torch-row-scale: 45 samples skipped"):
            self.assertIn(line, done.stderr)
        tables = json.loads((self.folder / "calibrated.json").read_text())["tables"]
        self.assertEqual(tables["gemm"]["bf16"]["provenance"]["borrowed_from"], "h200-sxm")
        self.assertEqual(tables["gemm"]["bf16-torch-grouped"]["provenance"]["kind"], "calibrated")

    def test_facts_that_a_profile_takes_over_are_checked(self):
        good = {"samples": {"elementwise": []}, "device": {"name": "one"}}
        for key, value, says in (
            ("device", {"name": 7}, ["device.name", "7"]),
            ("device", [], ["device", "an object", "[]"]),
            ("checks", {"summary": "all well"}, ["checks.summary", "all well"]),
            ("software", "none", ["software", "none"]),
            ("summary", 3, ["summary", "3"]),
        ):
            self.refused("fit", self.write("bad.json", dict(good, **{key: value})), says=["bad.json", *says])
        other = self.write("other.json", dict(good, device={"name": "two"}))
        self.refused("fit", self.write("good.json", good), other, says=["other.json", "device.name", '"two"', '"one"'])


    def nccl_tests(self, name, rows, nodes=2, each=2):
        """What all_reduce_perf prints over so many ranks, with (bytes, microseconds) as its rows."""
        lines = ["# Using devices"]
        for rank in range(nodes * each):
            lines.append(f"#  Rank {rank:2} Group  0 Pid {rank} on node-{rank // each} device {rank % each} [0x1{rank}] NVIDIA H100")
        lines.append("#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong")
        factor = 2 * (nodes * each - 1) / (nodes * each)
        for size, us in rows:
            side = f"{us:.2f} {1e-3 * size / us:.2f} {factor * 1e-3 * size / us:.2f} 0"
            lines.append(f"{size} {size // 4} float sum -1 {side} {side}")
        return self.write(name, "\n".join(lines) + "\n")

    def test_a_borrowed_profile_is_calibrated_by_what_nccl_tests_printed(self):
        rows = self.nccl_tests("all_reduce_perf.txt", [(8192, 60), (1 << 22, 900), (1 << 28, 30000)])
        mine = self.folder / "mine.json"
        result = run("fit", rows, "--base", "h100-sxm", "--nic-GBps", 25, "--network", "ours", "--out", mine)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("nccl-tests: 3 samples of all_reduce over 4 GPUs of 2 nodes, NVIDIA H100", result.stderr)
        made = json.loads(mine.read_text())
        self.assertEqual(made["tables"]["collective"]["default_network"], "ours")
        self.assertEqual(made["device"]["nic_GBps"], 25)
        shown = self.ok("profiles", "show", mine)
        self.assertIn("collective ours: calibrated, 3 samples", shown)
        self.assertIn("gemm bf16: published, 7595 samples, borrowed from h100-sxm", shown)
        table = self.write("rows.csv", "op,size_bytes,n_gpus,n_nodes,gpus_per_node,time_us\nall_reduce,4194304,4,2,2,900\n")
        made = json.loads(self.ok("predict", "--profile", mine, "--rows", table, "--format", "json"))
        self.assertLess(abs(made["rows"][0]["error"]), 0.25)
        self.assertNotIn("note: ", result.stderr)
        own, rest = result.stdout.splitlines()[1:-1], result.stdout.splitlines()[-1]
        self.assertEqual([line.split("  ")[0] for line in own], ["collective ours"] * 2)
        for line, group in zip(own, ("above 1 MiB +2", "up to 1 MiB +1"), strict=True):
            self.assertRegex(line, rf"^collective ours  {group} +[0-9.]+ % +([0-9.]+ %|-)$")
        self.assertIn("other tables are those of the base (--all)", rest)
        everything = self.ok("fit", rows, "--base", "h100-sxm", "--nic-GBps", 25, "--out", self.folder / "all.json", "--all")
        self.assertTrue(everything.startswith("your samples"))
        self.assertIn("gemm bf16", everything)
        self.assertNotIn("gemm bf16", result.stdout)
        study = {"model": "llama2-7b", "cluster": {"profile": str(mine), "network": {"nic_GBps": 50}}, "parallel": {"tensor": 8, "data": 2},
                 "batch": {"context_window": 8192, "sequences_per_step": 4, "steps": 1}, "trace": {"distribution": "wlb-128k"}, "policies": ["plain-4d"]}
        told = run("study", self.write("study.json", {"name": "faster NICs", **study}), "--notes")
        self.assertIn("cluster.network.nic_GBps 50: network ours of profile mine was measured with 25", told.stderr)
        self.assertNotIn("measured with", run("study", self.folder / "study.json", "--notes", "--set", "cluster.network.nic_GBps=25").stderr)
        fast = run("fit", rows, "--base", "h100-sxm", "--nic-GBps", 400, "--out", mine)
        self.assertIn("note: --nic-GBps 400 is 3200 Gbit/s per GPU, above any NIC of today: was Gbps meant? Then it is 50", fast.stderr)
        self.refused("fit", rows, says=["--base: needed"])
        self.refused("fit", rows, "--base", "cpu", "--out", mine, says=["--base cpu: no sample is of any of its tables; ", "cpu has no network"])
        self.refused("fit", rows, "--base", "h101-sxm", says=["--base: unknown profile", 'did you mean "h100-sxm"?'])
        self.refused("fit", rows, "--base", "h100-sxm", "--nic-GBps", 0, says=["--nic-GBps: ", "0"])
        self.refused("fit", self.write("study.json", {"name": "a study"}), "--base", "h100-sxm", says=["study.json: expected samples of `profile`", "nccl-tests"])
        for shown in ("h100-sxm", "cpu"):
            for view in self.ok("profiles", "show", shown).splitlines():
                self.assertNotEqual(view.strip(), "from")
                self.assertLessEqual(len(view), 110)
        self.refused("fit", rows, "--base", "h100-sxm", "--base-network", "rail-40", says=["--base-network", "did you mean", "rail-400"])
        self.refused("fit", rows, "--base-network", "rail-400", says=["--base-network: expected with --base"])
        self.refused("fit", rows, "--base", "cpu", says=["--base cpu", "no network"])
        self.refused("fit", self.write("x.txt", "hello\n"), "--base", "cpu", says=["x.txt: expected samples of `profile`", "nccl-tests"])
        self.refused("fit", self.folder / "none.txt", "--base", "cpu", says=["none.txt", "expected a file of samples"])
        broken = self.write("all_gather_perf.txt", rows.read_text())
        self.refused("fit", broken, "--base", "h100-sxm", says=["all_gather_perf.txt:6: expected busbw / algbw of 0.75"])


class PredictCommand(Case):
    def test_rows_are_printed_together_or_not_at_all(self):
        head = "gpu,op,M,N,K,dtype,time_ms,tflops,source\n"
        row = "H100,linear,{},4096,4096,bf16,0.2,,here\n"
        rows = self.write("gemm.csv", head + row.format(2048) + row.format(4096))
        printed = list(csv.DictReader(io.StringIO(self.ok("predict", "--profile", "h100-sxm", "--rows", rows))))
        self.assertEqual([r["M"] for r in printed], ["2048", "4096"])
        for r in printed:
            self.assertAlmostEqual(float(r["predicted_ms"]) / 0.2 - 1, float(r["error"]), places=3)
        both = json.loads(self.ok("predict", "--profile", "h100-sxm", "--rows", rows, "--format", "json"))
        self.assertEqual([r["M"] for r in both["rows"]], ["2048", "4096"])
        for r, row_printed in zip(both["rows"], printed):
            self.assertAlmostEqual(r["error"], float(row_printed["error"]), places=3)
        self.assertEqual(both["groups"][0]["samples"], 2)
        table = self.ok("predict", "--profile", "h100-sxm", "--rows", rows, "--format", "table").splitlines()
        self.assertTrue(table[0].startswith("group"))
        self.assertIn("bf16, M >= 2048", table[1])
        for found in ("0", "1.5", "1e308", "99999999999999999999"):
            bad = self.write("bad.csv", head + row.format(2048) + row.format(found))
            line = self.refused("predict", "--profile", "h100-sxm", "--rows", bad, says=["bad.csv:3: M: ", found])
            self.assertEqual(line.count("bad.csv"), 1)


    def test_what_cannot_be_meant_is_refused_in_one_line(self):
        head = "gpu,kernel,dtype,pass,mask,layout,batch,seq_q,seq_kv,n_q_heads,n_kv_heads,head_dim,time_ms\n"
        row = "G,K,bf16,fwd,causal,batched,{},64,64,8,8,128,1\n"
        predict = lambda batch, *more: ("predict", "--profile", "h100-sxm", "--rows", self.write("a.csv", head + row.format(batch)), *more)
        self.refused(*predict(20000000), says=["a.csv:2: batch:", "2^20", "20000000"])
        self.refused(*predict(4, "--kernel", "flash"), says=["--kernel", "kernels.flash:", "flash-attention-3"])
        for option, found in (("--only", "conv"), ("--models", "gpt-9")):
            self.refused("profile", "--minutes", 0.01, option, found, says=[option, found])

    def test_rows_that_no_table_can_price_say_why(self):
        """A mask, an element type, a group or a grouped product that is not modelled has no time, rather than another's."""
        attention = "gpu,kernel,dtype,pass,mask,layout,batch,seq_q,seq_kv,n_q_heads,n_kv_heads,head_dim,time_ms\n"
        gemm = "gpu,op,M,N,K,dtype,kernel,groups,next_N,next_K,time_ms\n"
        elementwise = "gpu,op,pass,backend,rows,cols,dtype,time_ms\n"
        collective = "op,gpu,n_gpus,n_nodes,gpus_per_node,size_bytes,time_us\n"
        cases = [
            (attention, "H,K,{dtype},fwd,{mask},{layout},1,{q},{k},8,{heads},{dim},1",
             [({}, ""), ({"mask": "Causal"}, ""), ({"mask": "full", "k": 64}, ""), ({"k": 4096}, ""), ({"k": 64}, "fewer keys"),
              ({"mask": "diag"}, "mask neither"), ({"mask": "non-causal"}, "mask neither"), ({"mask": ""}, "mask not stated"),
              ({"heads": 2}, ""), ({"heads": 3}, "3 does not divide n_q_heads 8"), ({"heads": 16}, "16 does not divide"),
              ({"dtype": "torch.bfloat16"}, ""), ({"dtype": "FP16"}, ""),
              ({"dtype": "int3"}, "this dtype"), ({"dtype": "fp8"}, "this dtype"),
              ({"layout": "batched; one sequence"}, ""), ({"layout": "varlen: 4 equal documents"}, ""), ({"layout": ""}, ""),
              ({"layout": "documents of 300;212"}, ""), ({"layout": "ragged"}, '"batched", "varlen", "documents of ", "packed documents", found "ragged"'),
              ({"dim": 256}, ""), ({"dim": 100000}, "head_dim: expected 16 to 256"), ({"dim": 8}, "head_dim: expected 16 to 256"),
              ({"q": 512, "k": 2**23}, "keys: expected 1 to")],
             {"dtype": "bf16", "mask": "causal", "layout": "batched", "q": 512, "k": 512, "heads": 8, "dim": 128}),
            (gemm, "H,linear,512,4096,4096,{dtype},{kernel},{groups},{next},{next_k},1",
             [({}, ""), ({"groups": 0, "next": 0, "next_k": 0}, ""), ({"dtype": "float32"}, "this dtype"),
              ({"dtype": "int3"}, "this dtype"), ({"groups": 16}, "this kernel"), ({"next": 64, "next_k": 64}, "this kernel"),
              ({"next": 64}, "only one of"), ({"groups": 16, "kernel": "torch-grouped"}, "")],
             {"dtype": "bf16", "kernel": "", "groups": "", "next": "", "next_k": ""}),
            (elementwise, "H,RMSNorm,fwd,b,4096,4096,{dtype},1", [({}, ""), ({"dtype": "float32"}, "this dtype")], {"dtype": "bf16"}),
            (collective, "all_reduce,H,{n},{nodes},{each},1048576,100",
             [({}, ""), ({"nodes": ""}, ""), ({"each": ""}, ""), ({"nodes": 3}, "unequally"), ({"nodes": 3, "each": ""}, "unequally"),
              ({"n": 12, "nodes": ""}, "unequally"), ({"n": 4, "nodes": 1}, "unequally")],
             {"n": 16, "nodes": 2, "each": 8}),
        ]
        for head, row, expected, given in cases:
            table = self.write("rows.csv", head + "".join(row.format(**{**given, **change}) + "\n" for change, _ in expected))
            made = json.loads(self.ok("predict", "--profile", "h100-sxm", "--rows", table, "--format", "json"))["rows"]
            for (change, reason), got in zip(expected, made, strict=True):
                with self.subTest(head[:20], **change):
                    self.assertEqual("predicted_ms" in got, reason == "")
                    self.assertIn(reason, got.get("not_predicted", ""))

    def test_grouped_products_take_as_long_as_all_of_their_groups(self):
        """64 experts' products of 4,096 rows fill the GPU, so that twice as many take about twice as long."""
        head = "gpu,op,M,N,K,dtype,kernel,groups\n"
        row = "H100,x,4096,4096,2048,bf16,torch-grouped,{}\n"
        rows = self.write("grouped.csv", head + row.format(64) + row.format(128))
        one, two = (r["predicted_ms"] for r in json.loads(
            self.ok("predict", "--profile", "h100-sxm", "--rows", rows, "--format", "json"))["rows"])
        self.assertAlmostEqual(two / one, 2, delta=0.1)

    def test_a_file_is_taken_once(self):
        measured = ROOT / "profiler/measured/h200-2026-11-27-torch.json"
        again = measured.parent / ".." / "measured" / measured.name
        self.refused("fit", measured, again, "--base", "h200-sxm", "--out", self.folder / "mine.json", says=[str(again), "named twice"])

    def test_a_profile_of_one_node_says_so_and_a_rate_is_positive(self):
        rows = self.write("nccl.csv", "op,n_gpus,n_nodes,size_bytes,time_us\nall_gather,2,1,4096,30\nall_gather,16,2,4096,60\n")
        self.refused("predict", "--profile", "cpu", "--rows", rows, says=["nccl.csv:3:", "cpu has no network"])
        self.refused("predict", "--profile", "h100-sxm", "--rows", rows, "--nic-GBps", -1, says=["--nic-GBps", "-1"])
        marked = self.write("marked.csv", "\ufeffM,N,K\n1024,4096,4096\n")
        self.assertIn("1024,4096,4096,", self.ok("predict", "--profile", "h100-sxm", "--rows", marked))

    def test_exchanges_of_tokens_are_predicted_by_the_table_of_their_transport(self):
        head = "op,gpu,n_gpus,n_nodes,gpus_per_node,inter_node_network,size_bytes,time_us,algbw_GBps,busbw_GBps,software\n"
        normal = "alltoall (EP dispatch),H800,{},{},8,IB,,,{},,DeepEP V1 normal kernels\n"
        rows = self.write("ep.csv", head + normal.format(8, 1, 150) + normal.format(64, 8, 50) +
                          "alltoall point-to-point RDMA (rail-aligned),H100,16,2,8,EFA,1048576,,40,,\n"
                          "alltoall,H100,16,2,8,IB,1073741824,,,80,NCCL\n")
        made = json.loads(self.ok("predict", "--profile", "h800-sxm", "--rows", rows, "--format", "json"))
        for row in made["rows"]:
            self.assertLess(abs(row["error"]), 0.5, row)
        names = " ".join(group["group"] for group in made["groups"])
        self.assertIn("[deepep]", names)
        self.assertIn("[rail-aligned]", names)
        # The board is the rows', not the profile's.
        narrow = json.loads(self.ok("predict", "--profile", "h100-sxm", "--rows", rows, "--format", "json"))
        self.assertEqual(narrow["rows"][2]["predicted_ms"], made["rows"][2]["predicted_ms"])
        self.assertIn("no table of this exchange", narrow["rows"][0]["not_predicted"])  # H100's are by size
        self.refused("predict", "--profile", "cpu", "--rows", self.write("one.csv", head + normal.format(8, 1, 150)),
                     says=["one.csv: none of 1 row", "no table of this exchange", "line 2"])
        self.refused("predict", "--profile", "h100-sxm", "--rows", self.write("two.csv", head + normal.format(8.5, 1, 150)),
                     says=["two.csv:2: n_gpus", "8.5"])

    def test_a_profile_with_other_types_is_not_our_fault(self):
        profile = json.loads(self.ok("profiles", "show", "h100-sxm", "--format", "json"))
        profile["tables"]["gemm"]["bf16"]["ranges"]["m"] = 7
        self.refused("profiles", "show", self.write("mine.json", profile), says=["mine.json"])


if __name__ == "__main__":
    unittest.main()

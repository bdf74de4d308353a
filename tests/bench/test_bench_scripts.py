#!/usr/bin/env python3
"""What the scripts of tests/bench compute: fits, spreads, turns, tables. Nothing is timed."""
import contextlib
import dataclasses
import io
import json
import math
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import against_simgrid
import before_after
import growth
import instructions
import peer_calls
import peers
import user_work
from process_cost import Cost, exponent, fixed_cost, measure, spread, take_turns


def cost(cpu, status="ok", text="", peak=100.0):
    return Cost(cpu=cpu, elapsed=cpu, peak_MB=peak, text=text, status=status)


class Instructions(unittest.TestCase):
    def test_either_counter_is_read(self):
        self.assertEqual(instructions.counted("warning: x\n123456,,instructions:u,99,100.00,,\n"), 123456)
        self.assertEqual(instructions.counted("==7== Events    : Ir\n==7== Collected : 4241649195\n"), 4241649195)
        self.assertIsNone(instructions.counted("<not supported>,,instructions:u,0,100.00,,\n"))

    def test_a_loss_is_named_above_the_limit_alone(self):
        self.assertEqual([instructions.row("x", 100, after, 3)[1] for after in (97, 103, 104)], [False, False, True])
        self.assertIn("LOSS", instructions.row("x", 100, 104, 3)[0])

    def test_a_command_that_only_the_later_program_refuses_is_a_loss(self):
        self.assertTrue(instructions.row("x", 100, None, 3)[1])
        self.assertFalse(instructions.row("x", None, 100, 3)[1])

    def test_there_are_twelve_works(self):
        self.assertEqual(len(instructions.WORKS), 12)


class Fits(unittest.TestCase):
    def test_a_power_law_gives_its_exponent(self):
        for power in (0.5, 1, 1.8):
            self.assertAlmostEqual(exponent([(size, 3 * size**power) for size in (1, 2, 4, 8, 16)]), power)

    def test_n_log_n_over_a_factor_of_16_is_above_linear(self):
        # d log(n log n) / d log n = 1 + 1 / ln n: 1.07 to 1.09 from 62,500 to 1,000,000.
        fitted = exponent([(n, n * math.log(n)) for n in (62500, 125000, 250000, 500000, 1000000)])
        self.assertTrue(1.07 < fitted < 1.10)

    def test_what_does_not_grow_is_taken_off(self):
        # 5 + 2 per unit: 7 for one, 9 for two, 13 for four.
        self.assertEqual((fixed_cost(7, 9, 2), fixed_cost(7, 13, 4)), (5, 5))
        self.assertEqual(fixed_cost(2, 4.1, 2), 0)  # never less than nothing
        self.assertEqual(fixed_cost(1, 1, 2), 0.9)  # nor all of it
        curve = growth.study_curve("stage", "GPUs", dict.fromkeys(growth.SIZES, ""))
        costs = [[5 + 2 * (point.size or growth.MORE_STEPS)] for point in curve.points]
        fit = growth.fit(curve, costs)
        self.assertAlmostEqual(fit.exponent, 1)
        self.assertEqual((fit.sizes, fit.costs[0], fit.costs[-1]), (5, 2, 32))

    def test_sizes_that_did_not_end_are_excluded(self):
        curve = growth.study_curve("contended", "GPUs", dict.fromkeys(growth.SIZES, ""))
        fit = growth.fit(curve, [[4], [1], [3], [9], [], []])
        self.assertEqual(fit.sizes, 3)
        self.assertAlmostEqual(fit.exponent, math.log(9) / math.log(4))
        self.assertTrue(math.isnan(growth.fit(curve, [[4], [1], [], [], [], []]).exponent))

    def test_every_fidelity_grows_along_every_axis_over_at_least_four_sizes(self):
        curves = before_after.curves(dict.fromkeys(growth.SIZES, ""), dict.fromkeys(growth.SIZES, ""))
        found = {(c.fidelity, c.axis) for c in curves}
        axes = ("documents", "GPUs", "micro-batches")
        self.assertTrue({(f, a) for f in ("stage", "op", "contended") for a in axes} <= found)
        for curve in curves:
            self.assertGreaterEqual(len([p for p in curve.points if p.size > 0]), 4)
            if curve.fidelity not in growth.PACKERS:
                self.assertEqual(curve.goal, "1.2" if curve.fidelity == "contended" else "1.05")

    def test_the_median_and_half_of_the_range(self):
        self.assertEqual((spread([1, 2, 4]).median, spread([1, 2, 4]).half_range), (2, 0.75))


class Running(unittest.TestCase):
    def test_programs_take_turns_the_other_way_about_each_second_round(self):
        order = []
        take_turns(["a", "b"], lambda name: order.append(name) or cost(1), 3, 1000)
        self.assertEqual("".join(order), "abbaab")

    def test_a_program_that_fails_is_not_run_again(self):
        costs = take_turns(["a", "b"], lambda name: cost(1, "late" if name == "b" else "ok"), 3, 1000)
        self.assertEqual([len(costs["a"]), len(costs["b"])], [3, 1])

    def test_a_process_is_weighed_with_what_it_wrote(self):
        folder = tempfile.mkdtemp()
        code = f"open({folder!r} + '/x.pftrace', 'w').write('x' * 2000000); held = bytearray(90 << 20); print('done')"
        of_it = measure([sys.executable, "-c", code], 60, folder, "*.pftrace*")
        self.assertEqual((of_it.status, of_it.text, of_it.written_MB), ("ok", "done\n", 2))
        self.assertGreater(of_it.peak_MB, 90)
        self.assertFalse(pathlib.Path(folder).exists())

    def test_what_is_refused_says_why_and_what_takes_too_long_is_ended(self):
        refused = measure([sys.executable, "-c", "import sys; print('no such flag', file=sys.stderr); sys.exit(2)"], 60)
        self.assertEqual((refused.status, refused.text), ("refused", "no such flag"))
        self.assertEqual(measure([sys.executable, "-c", "import time; time.sleep(600)"], 0.1).status, "late")

    def test_the_first_way_that_is_not_refused_is_measured(self):
        ways = [["-c", "import sys; sys.exit(2)"], ["-c", "print('second')"]]
        self.assertEqual(before_after.run_once(sys.executable, ways, 60, "").text, "second\n")


class Tables(unittest.TestCase):
    work = user_work.Work("w", "work", [], [user_work.CPU, user_work.PEAK], most_seconds=60)

    def table(self, **rounds):
        measured = before_after.Measured(list(rounds))
        measured.keep("w", {name: [[one] for one in costs] for name, costs in rounds.items()})
        return before_after.table(measured, [self.work]).splitlines()[2:]

    def test_a_cell_is_the_median_and_half_of_the_range_and_the_gain_is_before_over_after(self):
        lines = self.table(before=[cost(4), cost(4.4), cost(3.6)], after=[cost(2, peak=50), cost(2, peak=50)])
        self.assertEqual(lines, ["| work | CPU | 4.00 s ±10 % | 2.00 s ±0 % | 2.00x |",
                                 "|  | peak memory | 100 MB ±0 % | 50.0 MB ±0 % | 2.00x |"])

    def test_one_run_has_no_range(self):
        line = self.table(before=[cost(4)], after=[cost(2), cost(1.5), cost(2.5)])[0]
        self.assertIn("| 4.00 s | 2.00 s ±25 % |", line)

    def test_what_did_not_end_is_said(self):
        lines = self.table(before=[cost(60, "late", peak=5300)], after=[cost(2)])
        self.assertEqual(lines[0], "| work | CPU | not in 60 s, 5,300 MB by then | 2.00 s |  |")
        refused = cost(0, "refused", "error: a.json: plain-4d: needs 20 GB; or less")
        lines = self.table(before=[refused], after=[cost(2)])
        self.assertIn("| refused: needs 20 GB |", lines[0])

    def test_packing_time_is_that_of_all_batches(self):
        text = "391,044,000 tokens in {} global batches\nmetric   isf\nsteps   122\npack ms (measured)  2.500\n"
        self.assertEqual(user_work.packing_ms([cost(1, text=text.format(123))]), 307.5)
        # With more steps than batches the mean says nothing about the whole.
        self.assertTrue(math.isnan(user_work.packing_ms([cost(1, text=text.format(12))])))

    def test_what_is_saved_is_read_again(self):
        measured = before_after.Measured(["a"], lengths="mixed")
        measured.keep("w", {"a": [[cost(1)]]})
        with tempfile.TemporaryDirectory() as folder:
            measured.save(folder + "/m.json")
            again = before_after.read_measured([folder + "/m.json"])
        self.assertEqual((again.of("w", "a"), again.lengths), ([[cost(1)]], "mixed"))

    def test_growth_is_printed_next_to_its_goal(self):
        measured = before_after.Measured(["now"])
        curve = growth.study_curve("contended", "GPUs", dict.fromkeys(growth.SIZES, ""))
        for point in curve.points:
            measured.keep(curve.key(point), {"now": [[cost(2 * (point.size or growth.MORE_STEPS))]]})
        lines = before_after.growth_table(measured).splitlines()[2:]
        self.assertEqual(lines, ["| contended | GPUs | 1.2 | 1.00 (5), 2.00 to 32.0 |"])

    def test_a_table_is_put_between_its_marks(self):
        text = before_after.between("a <!-- x -->old<!-- /x --> b <!-- y -->kept<!-- /y -->", "x", "new")
        self.assertEqual(text, "a <!-- x -->\n\nnew\n\n<!-- /x --> b <!-- y -->kept<!-- /y -->")

    def test_documents_are_those_that_the_study_says(self):
        self.assertEqual(growth.documents_of("x: on 64 GPUs, 209,715,200 tokens of 96,733 documents from y"), 96733)


class Peers(unittest.TestCase):
    """What a peer is asked and how answers are compared, with peers that the tests write."""

    packing = peers.Packing("megatron-bridge", "first-fit decreasing", "ffd", documents=3, same=True)
    parts = peers.Packing("verl", "two parts", "karmarkar-karp", documents=3, parts=2, same=True)

    def ask(self, source, lengths=(5, 6, 4), size=10, peer="megatron-bridge"):
        """peer_calls on a peer of that source, in a process of its own"""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "algorithms.py").write_text(source)
            (folder / "lengths.txt").write_text("\n".join(map(str, lengths)))
            problem = folder / "problem.json"
            problem.write_text(json.dumps({"lengths": str(folder / "lengths.txt"), "documents": len(lengths), "size": size}))
            return measure([sys.executable, pathlib.Path(peer_calls.__file__), peer, problem, folder], 60)

    def test_a_peer_is_one_file_and_needs_nothing_of_what_it_imports(self):
        said = self.ask("from megatron.bridge.utils import get_logger\nget_logger('x').info('y')\n"
                        "def first_fit_decreasing(lengths, size):\n    print('packed')\n    return [[6, 4], [5]]\n")
        self.assertEqual(said.status, "ok", said.text)
        of_it = json.loads(said.text)
        self.assertEqual((of_it["answer"], of_it["version"]), ({"packs": 2, "placed": 3, "largest": 10}, "a folder"))
        self.assertLessEqual(of_it["call"], of_it["process"])

    def test_a_peer_that_is_not_there_is_refused_and_one_that_packs_twice_fails(self):
        self.assertEqual(self.ask("", peer="llamafactory").status, "refused")
        twice = self.ask("def first_fit_decreasing(lengths, size):\n    return [[6, 4], [5, 5]]\n")
        self.assertEqual((twice.status, "packed twice" in twice.text), ("failed", True))

    def test_a_peer_that_fails_or_is_late_is_a_fault_and_one_that_is_not_there_is_none(self):
        for costs, missing, failed in (
            ([cost(1, "refused", "a is not installed")], ["a (refused: a is not installed)"], []),
            ([cost(1, "late")], [], ["a (late: no word)"]),
            ([cost(1, text='{"call": 1, "process": 1}'), cost(1, "failed", "Traceback\npacked twice")], [], ["a (failed: packed twice)"]),
        ):
            bench, left = peers.Bench("true", {}, 3, None), iter(costs)
            bench.peer = lambda *_: next(left)
            self.assertIsNone(bench.turns("a", {}, []))
            self.assertEqual((bench.missing, bench.failed), (missing, failed))
            self.assertEqual(list(peers.faults([], bench.failed)), failed)

    def test_a_solver_that_fails_is_a_fault(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(against_simgrid, "build_simgrid", lambda _: "false"):
            bench = peers.Bench("true", {}, 3, pathlib.Path(folder))
            bench.contention("false", "8x1")
            self.assertEqual((bench.missing, bench.failed), ([], ["SimGrid 8x1 (false ends with status 1)"]))

    def written(self, missing):
        """Whether --write writes the page, and the status, of a bench whose peers are all but `missing`."""
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "peers.md"
            page.write_text("<!-- peers -->old<!-- /peers -->")

            def packing(bench, problem, lengths, path):
                if problem.peer == missing:
                    bench.missing.append(problem.peer)

            lengths = lambda *_: ([1], pathlib.Path(folder), "a trace")
            with mock.patch.multiple(peers, PAGE=page, write_lengths=lengths), mock.patch.multiple(
                    peers.Bench, packing=packing, contention=lambda *_: None, what_if=lambda *_: None), mock.patch.object(
                    sys, "argv", ["peers.py", "--write"]), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                status = peers.main()
            return "old" not in page.read_text(), status

    def test_the_page_is_written_where_all_peers_are_here(self):
        self.assertEqual(self.written(missing=None), (True, 0))
        self.assertEqual(self.written(missing="trl"), (False, 1))

    def test_turns_are_those_that_were_made(self):
        bench = peers.Bench("true", {}, 3, None)
        bench.peer = lambda *_: cost(1, text='{"call": 1, "process": 2}')
        (call, process, _, turns), said = bench.turns("a", {}, [])
        self.assertEqual((call, process, turns, said["call"]), (1, 2, 3, 1))
        lines = [peers.Line("work", "peer", 1, 1, 1, turns, (True, "")) for turns in (1, 3)]
        self.assertEqual([peers.turns_made(some) for some in (lines, lines[:1], lines[1:], [])],
                         ["Medians of 1 to 3 turns, as many as a row takes in 60 s", "One turn", "Medians of 3 turns", "No turn"])

    def verdict(self, theirs, ours, problem=None, **changes):
        problem = dataclasses.replace(problem or self.packing, **changes)
        lengths = [peers.CAPACITY, 1000, 96]
        answers = [peer_calls.packing_answer(lengths, packs) for packs in (theirs, ours)]
        return peers.packing_verdict(problem, *answers, len(lengths), sum(lengths) / (problem.parts or 1))

    def test_one_algorithm_gives_one_number_of_packs_and_others_no_fewer_than_ours(self):
        two, three = [[4096], [1000, 96]], [[4096], [1000], [96]]
        self.assertEqual(self.verdict(two, two), (True, "2 packs"))
        self.assertEqual(self.verdict(three, two), (False, "3 packs, ours 2"))
        self.assertTrue(self.verdict(three, two, same=False)[0])
        self.assertFalse(self.verdict(two, three, same=False)[0])
        self.assertFalse(self.verdict(two, [[4096], [1000]], same=False)[0], "a document is lost")
        self.assertFalse(self.verdict(two, [[4096, 96], [1000]])[0], "a pack is too large")

    def test_parts_are_equal_to_a_millionth_of_the_mean(self):
        best, worse = [[4096], [1000, 96]], [[4096, 96], [1000]]
        self.assertEqual(self.verdict(best, best, self.parts), (True, "largest part over mean 1.577812"))
        self.assertFalse(self.verdict(best, worse, self.parts)[0])
        self.assertFalse(self.verdict(worse, best, self.parts)[0])
        self.assertTrue(self.verdict(worse, best, self.parts, same=False)[0])

    def test_a_plan_is_its_packs_of_whole_documents(self):
        plan = lambda *slices: {"steps": [{"lanes": [{"micro_batches": [
            {"slices": list(slices), "tokens": sum(end - begin for _, begin, end in slices)}, {"slices": [], "tokens": 0}]}]}]}
        self.assertEqual(peers.packs_of(plan([1, 0, 7], [0, 0, 5]), [5, 7]), [[7, 5]])
        with self.assertRaises(ValueError):
            peers.packs_of(plan([1, 0, 3]), [5, 7])

    def test_what_ifs_are_compared_by_the_flops_of_a_step(self):
        text = "step_seconds,mfu,gpus,reason\n" + "2,0.5,128,\n" * (len(peers.jobs()) - 1) + ",,,does not divide\n"
        ours = peers.sweep_answer(text)
        self.assertEqual((ours["steps"], ours["of"], ours["flops"]), (len(peers.jobs()) - 1, len(peers.jobs()), 128 * 312e12))
        self.assertTrue(peers.what_if_verdict({**ours, "flops": 1.09 * ours["flops"]}, ours)[0])
        self.assertFalse(peers.what_if_verdict({**ours, "flops": 0.85 * ours["flops"]}, ours)[0])
        with self.assertRaises(ValueError):
            peer_calls.steps_answer([1], ["no memory"])

    def test_jobs_are_in_the_order_of_the_sweep(self):
        jobs = peers.jobs()
        self.assertEqual([(job["gpus"], job["tensor"], job["pipeline"]) for job in (jobs[0], jobs[1], jobs[-1])],
                         [(128, 1, 1), (128, 1, 2), (512, 8, 8)])
        self.assertEqual({job["gpus"] // (job["tensor"] * job["pipeline"] * job["data"]) for job in jobs}, {1})

    def test_a_unit_is_read(self):
        self.assertEqual((peer_calls.seconds("24.5 ms"), peer_calls.flops("15.5 T")), (24.5e-3, 15.5e12))

    def test_a_row_that_is_behind_needs_a_reason_and_one_whose_answers_differ_is_named(self):
        ahead = peers.Line("work", "ahead 1", call=4, process=5, ours=2, turns=3, verdict=(True, "2 packs"))
        behind = dataclasses.replace(ahead, peer="behind 2", ours=8)
        other = dataclasses.replace(ahead, peer="other 3", verdict=(False, "3 packs"))
        self.assertEqual([fault.split(":")[0] for fault in peers.faults([ahead, behind, other])], ["behind 2, work", "other 3, work"])
        self.assertEqual(list(peers.faults([dataclasses.replace(behind, why="it does less")])), [])
        lines = peers.table([ahead, dataclasses.replace(behind, why="it does less")]).splitlines()
        self.assertEqual(lines[2], "| work | ahead 1 | 4.00 s | 5.00 s | 2.00 s | 2.00x | 2 packs |")
        self.assertEqual(lines[-1], "- behind 2, work: it does less.")


if __name__ == "__main__":
    unittest.main()

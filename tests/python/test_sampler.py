#!/usr/bin/env python3
"""BatchSampler: the plans of `equipoise pack`, the same on every rank, and resumable anywhere."""

import contextlib
import io
import json
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings
from concurrent.futures import Future
from pathlib import Path

import numpy as np

import equipoise
from equipoise.sampler import _say_while
from support import STUDY, program

SHAPE = dict(context_window=8192, documents_per_step=48, micro_batches=8)
ARGUMENTS = ("--context-window", 8192, "--documents-per-step", 48, "--micro-batches", 8)


def drawn(documents=480, seed=1):
    return np.minimum(equipoise.draw_trace("lmsys-chat-1m", documents, seed), 8000)


class Waiting(unittest.TestCase):
    def said(self, seconds, terminal):
        """What stderr gets while a plan is waited for, by whom three tenths of a second are long."""
        text, future = io.StringIO(), Future()
        text.isatty = lambda: terminal
        threading.Timer(seconds, future.set_result, [None]).start()
        with contextlib.redirect_stderr(text):
            _say_while(future, "equipoise: row wlb", patience=0.3)
        return text.getvalue()

    def test_a_long_one_is_said(self):
        self.assertEqual(self.said(0.0, False), "")
        self.assertEqual(self.said(1.0, False), "equipoise: row wlb ...\nequipoise: row wlb: 1 s\n")
        counted = self.said(1.5, True)
        self.assertTrue(counted.startswith("equipoise: row wlb ...\requipoise: row wlb ... 1 s"), counted)
        self.assertTrue(counted.endswith("\r\033[K"), counted)  # nothing is left of it


class Plans(unittest.TestCase):
    def test_micro_batches_are_those_of_the_program(self):
        lengths = drawn()
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "lengths.npy"
            equipoise.write_trace(lengths, trace)
            for policy, arguments, options in (
                ("wlb", ("--queues", 1), {"queues": 1}),
                ("lpt", (), {}),
                ("karmarkar-karp", (), {}),
                ("fixed-greedy", (), {}),
                ("ffd", ("--pack-length", "8K"), {"pack_length": "8K"}),
                (
                    "gds",
                    ("--bucket-size", "8K", "--context", 2),
                    {"bucket_size": "8K", "context": 2, "cost": "quadratic"},
                ),
            ):
                if policy == "gds":
                    arguments = (*arguments, "--cost", "quadratic")
                plan = program(
                    "pack",
                    trace,
                    "--policy",
                    policy,
                    *ARGUMENTS,
                    *arguments,
                    "--lanes",
                    4,
                    "--format",
                    "json",
                )
                for lane in range(4):
                    sampler = equipoise.BatchSampler(lengths, policy, lanes=4, lane=lane, **SHAPE, **options)
                    wanted = [
                        [document for document, _, _ in m["slices"]]
                        for step in plan["steps"]
                        for m in step["lanes"][lane]["micro_batches"]
                        if m["slices"]
                    ]
                    self.assertEqual(list(sampler), wanted, (policy, lane))

    def test_every_document_once_over_all_lanes(self):
        lengths = drawn()
        seen = [
            d
            for lane in range(3)
            for m in equipoise.BatchSampler(
                lengths, "wlb", lanes=3, lane=lane, documents_per_step=48, micro_batches=6
            )
            for d in m
        ]
        self.assertEqual(sorted(seen), list(range(480)))

    def test_slices_where_documents_are_cut(self):
        lengths = [6, 9, 1, 8]  # windows of 8 tokens: 0 and 2 of 1; 7 of 1 and 2; 3
        sampler = equipoise.BatchSampler(
            lengths, "plain", context_window=8, sequences_per_step=1, slices=True
        )
        self.assertEqual(list(sampler), [[(0, 0, 6), (1, 0, 2)], [(1, 2, 9), (2, 0, 1)], [(3, 0, 8)]])
        with self.assertRaisesRegex(ValueError, r"cuts document 1 of 9 tokens to \[0, 2\)"):
            list(equipoise.BatchSampler(lengths, "plain", context_window=8, sequences_per_step=1))

    def test_ranks_in_processes_of_their_own_agree(self):
        # Every rank plans all lanes: what rank 1 computes for lane 0 in its own process is what rank 0 runs.
        script = (
            "import sys, json, equipoise, numpy as np\n"
            "lengths = np.minimum(equipoise.draw_trace('lmsys-chat-1m', 480, 1), 8000)\n"
            "lanes = [list(equipoise.BatchSampler(lengths, 'wlb', lanes=2, lane=lane, context_window=8192, "
            "documents_per_step=48, micro_batches=8, reshuffle=True, seed=7)) for lane in (0, 1)]\n"
            "json.dump(lanes, sys.stdout)"
        )
        ranks = [
            json.loads(
                subprocess.run(
                    [sys.executable, "-c", script], capture_output=True, text=True, check=True
                ).stdout
            )
            for _ in range(2)
        ]
        self.assertEqual(ranks[0], ranks[1])

    def test_reshuffled_epochs_differ_and_are_the_plans_of_their_order(self):
        lengths = drawn()
        sampler = equipoise.BatchSampler(lengths, "lpt", reshuffle=True, seed=3, **SHAPE)
        epochs = [list(sampler) for _ in range(3)]
        self.assertNotEqual(epochs[0], epochs[1])
        for epoch in epochs:
            self.assertEqual(sorted(d for m in epoch for d in m), list(range(480)))
        order = np.random.RandomState([3, 1]).permutation(480)
        plan = equipoise.pack(lengths[order], "lpt", seed=3, **SHAPE)
        self.assertEqual(
            epochs[1], [[int(order[d]) for d, _, _ in m] for step in plan.steps for m in step[0]]
        )
        again = equipoise.BatchSampler(lengths, "lpt", reshuffle=True, seed=3, **SHAPE)
        again.set_epoch(1)
        self.assertEqual(list(again), epochs[1])

    def test_length_is_what_comes(self):
        sampler = equipoise.BatchSampler(drawn(), "wlb", lanes=2, lane=1, **SHAPE)
        self.assertEqual(len(sampler), len(list(sampler)))

    def test_a_step_of_so_many_tokens_has_as_many_documents_on_the_mean(self):
        lengths = drawn()
        tokens = round(48 * lengths.mean())
        counted = equipoise.BatchSampler(lengths, "lpt", **SHAPE)
        shape = {key: value for key, value in SHAPE.items() if key != "documents_per_step"}
        self.assertEqual(list(equipoise.BatchSampler(lengths, "lpt", tokens_per_step=tokens, **shape)), list(counted))
        for wrong in (dict(SHAPE, tokens_per_step=tokens), dict(shape, tokens_per_step=0)):
            with self.assertRaisesRegex(ValueError, "tokens_per_step: expected"):
                equipoise.BatchSampler(lengths, "lpt", **wrong)

    def test_a_policy_with_lanes_of_its_own_is_refused(self):
        sampler = equipoise.BatchSampler(drawn(), "flexsp", lanes=1, context=8, context_window=8192, documents_per_step=48)
        with self.assertRaisesRegex(ValueError, "flexsp gives step .* lanes of CP degree"):
            len(sampler)

    def test_what_the_plan_notes_is_a_warning_once(self):
        sampler = equipoise.BatchSampler(drawn(), "wlb", tokens_per_micro_batch="1K", **SHAPE)
        with self.assertWarnsRegex(UserWarning, "tokens_per_micro_batch has no effect on wlb"):
            len(sampler)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(sampler)

    def test_what_only_a_study_asks_is_no_warning(self):
        options = dict(SHAPE, queues=1)
        self.assertIn("batch.steps of", " ".join(equipoise.pack(drawn(), "wlb", **options).notes))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(equipoise.BatchSampler(drawn(), "wlb", **options))
        with self.assertWarns(UserWarning) as seen:
            list(equipoise.BatchSampler(drawn(), "wlb", tokens_per_micro_batch="1K", **options))
        self.assertEqual(len(seen.warnings), 1)

    def test_what_a_studys_batch_says_for_all_rows_is_no_warning(self):
        batch = {"documents_per_step": 48, "max_length": "16K", "oversize": "truncate", "micro_batches": 4, "steps": 2}
        rows = ["padded", "sorted", "karmarkar-karp", {"name": "padded", "label": "own", "oversize": "split"}]
        result = equipoise.study({**STUDY, "batch": batch, "policies": rows})

        def warned(row, **options):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                equipoise.BatchSampler.from_study(result, row, drawn(), slices=True, **options)
            return [str(one.message) for one in seen if "no effect" in str(one.message)]

        for row in ("padded", "sorted", "karmarkar-karp"):
            self.assertEqual(warned(row), [])
        # What is said of the row itself, or here, is its own.
        self.assertEqual(warned("own"), ["oversize has no effect on padded"])
        self.assertEqual(warned("padded", oversize="truncate"), ["oversize has no effect on padded"])
        self.assertEqual(warned("sorted", micro_batches=2), ["micro_batches has no effect on sorted"])

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, "lane: expected an integer from 0 to 1, found 2"):
            equipoise.BatchSampler([1, 2], "wlb", lanes=2, lane=2)
        for wrong, text in (({"lanes": 0}, "lanes: expected an integer from 1, found 0"), ({"slices": 1}, "slices: expected True or False")):
            with self.assertRaisesRegex(ValueError, text):
                equipoise.BatchSampler([1, 2], "wlb", **wrong)
        with self.assertRaisesRegex(ValueError, "policy: expected a name, a function .*, found 3"):
            equipoise.BatchSampler([1, 2], 3)
        with self.assertRaisesRegex(ValueError, "lengths: expected at least 1 token each, found 0"):
            equipoise.BatchSampler([0, 2, 3], "wlb", documents_per_step=2)
        for policy, options, text in (  # all of it before anything is planned
            ("wbl", {}, 'unknown name "wbl", did you mean "wlb"'),
            ("wlb", {"queus": 2}, 'unknown option "queus"'),
            ("wlb", {"queues": -1}, "queues: expected"),
            (lambda lengths, options: [], {"chunk": 2}, 'unknown option "chunk"'),
        ):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                equipoise.BatchSampler([1, 2], policy, **options)


class Resume(unittest.TestCase):
    def make(self, **more):
        return equipoise.BatchSampler(drawn(), "wlb", lanes=2, **{**SHAPE, "queues": 1, **more})

    def test_anywhere_gives_the_same_rest(self):
        for reshuffle in (False, True):
            whole = [m for _ in range(2) for m in self.run_epoch(self.make(reshuffle=reshuffle), _)]
            for stop in (0, 1, 3, 4, 7, 40, len(whole) // 2, len(whole) // 2 + 1, len(whole) - 1):
                first = self.make(reshuffle=reshuffle)
                head = self.take(first, stop)
                state = json.loads(json.dumps(first.state_dict()))  # as a checkpoint keeps it
                second = self.make(reshuffle=reshuffle)
                second.load_state_dict(state)
                tail = self.take(second, len(whole) - stop)
                self.assertEqual(head + tail, whole, (reshuffle, stop))

    def run_epoch(self, sampler, epoch):
        sampler.set_epoch(epoch)
        return list(sampler)

    def take(self, sampler, count):
        taken = []
        while len(taken) < count:
            for micro_batch in sampler:
                taken.append(micro_batch)
                if len(taken) == count:
                    break
        return taken

    def test_inside_a_step_its_rest_comes_first(self):
        sampler = self.make()
        steps = list(sampler.steps())
        sampler.set_epoch(0)
        first = next(sampler.steps())
        self.assertEqual(len(first), 4)  # 8 micro-batches over 2 lanes
        list(zip(range(3), first))
        resumed = self.make()
        resumed.load_state_dict(sampler.state_dict())
        again = next(resumed.steps())
        self.assertEqual((again.step, again.micro_batches), (0, first.micro_batches))
        self.assertEqual(list(again), first.micro_batches[3:])
        self.assertEqual(len(steps), len({step.step for step in steps}))

    def test_a_lane_without_micro_batches_takes_part_in_every_step(self):
        # Two documents a step: one lane has both chunks of the long one, or none.
        lengths = [16, 2, 16, 2]
        lanes = [
            equipoise.BatchSampler(
                lengths,
                "chunkflow",
                lanes=4,
                lane=lane,
                documents_per_step=2,
                chunk_size=8,
                context_window=16,
                sequences_per_step=4,
                slices=True,
            )
            for lane in range(4)
        ]
        for sampler in lanes:
            numbers = []
            for step in sampler.steps():
                numbers.append(step.step)
                list(step)
            self.assertEqual(numbers, [0, 1])
            self.assertEqual(sampler.epoch, 1)

    def test_an_epoch_ends_with_a_step_that_has_nothing_for_this_lane(self):
        # Two documents a step, one for each lane; the third step has one, which is lane 0's.
        sampler = equipoise.BatchSampler(
            [4] * 5, "lpt", lanes=2, lane=1, context_window=8, documents_per_step=2, micro_batches=2
        )
        batches = iter(sampler)
        self.assertEqual(sampler.rest(), [1, 1, 0])
        self.assertEqual([next(batches), next(batches)], [[1], [3]])
        self.assertEqual(sampler.state_dict(), sampler.state_dict(consumed=2))
        self.assertEqual(sampler.rest(), [0])
        self.assertIsNone(next(batches, None))
        self.assertEqual((sampler.epoch, sampler.rest()), (1, [1, 1, 0]))

    def test_what_workers_asked_ahead_is_not_counted(self):
        sampler = self.make()
        whole = list(sampler)
        sampler.set_epoch(0)
        ahead = iter(sampler)
        for _ in range(9):
            next(ahead)
        resumed = self.make()
        resumed.load_state_dict(sampler.state_dict(consumed=5))
        self.assertEqual(list(resumed), whole[5:])
        resumed.load_state_dict(sampler.state_dict(consumed=len(whole)))
        self.assertEqual(resumed.epoch, 1)
        with self.assertRaisesRegex(ValueError, "consumed: expected an integer from 0 to"):
            sampler.state_dict(consumed=len(whole) + 1)

    def test_another_run_is_refused(self):
        state = self.make().state_dict()
        for other, differs in (
            (self.make(queues=2), r"found other queues 1 \(2 here\): "),
            (equipoise.BatchSampler(drawn(), "lpt", lanes=4, reshuffle=True, **SHAPE),
             r"found other policy wlb \(lpt here\), lanes 2 \(4 here\), reshuffle False \(True here\), queues 1 \(None here\): "),
            (equipoise.BatchSampler(drawn(seed=2), "wlb", lanes=2, queues=1, **SHAPE), "found other lengths: "),
        ):
            with self.assertRaisesRegex(ValueError, differs):
                other.load_state_dict(state)
        with self.assertRaisesRegex(ValueError, "settings: expected those .*, found None"):
            self.make().load_state_dict({**state, "settings": None})
        with self.assertRaisesRegex(ValueError, "version: expected 1"):
            self.make().load_state_dict({})
        with self.assertRaisesRegex(ValueError, "step"):
            self.make().load_state_dict({**state, "step": 10_000})

    def test_inside_a_step_a_state_is_of_its_lane(self):
        # Where a step begins all lanes are: one of them may save for all.
        first, second = self.make(), self.make(lane=1)
        whole = list(second)
        second.set_epoch(0)
        self.take(first, 4)
        second.load_state_dict(first.state_dict())
        self.assertEqual(list(second), whole[4:])
        second.set_epoch(0)
        self.take(first, 1)
        with self.assertRaisesRegex(ValueError, "state: lane: expected 1, or the beginning of a step, where all lanes are, found 0"):
            second.load_state_dict(first.state_dict())
        self.assertEqual(list(second), whole)

    def test_pickles_go_on_where_they_were(self):
        sampler = self.make()
        self.take(sampler, 7)
        there = pickle.loads(pickle.dumps(sampler))
        self.assertEqual(list(there), list(sampler))


def longest_first(lengths, options):
    """Documents of each batch, longest first, each to the micro-batch with the fewest tokens."""
    steps = []
    for batch in options["batches"]:
        micro_batches = [[] for _ in range(options["micro_batches"])]
        for piece in sorted(batch, key=lambda p: p[1] - p[2]):
            min(micro_batches, key=lambda m: sum(e - b for _, b, e in m)).append(piece)
        steps.append([micro_batches[lane :: options["lanes"]] for lane in range(options["lanes"])])
    return steps


class OwnPolicy(Resume):
    """A function in place of a name: all that holds of a policy's name when a run resumes, and more."""

    def make(self, policy=longest_first, **more):
        return equipoise.BatchSampler(drawn(), policy, lanes=2, **{**SHAPE, **more})

    def test_another_run_is_refused(self):
        state = self.make().state_dict()
        shorter = equipoise.policy(lambda lengths, options: longest_first(lengths, options)[::-1], label="longest_first")
        self.make().load_state_dict(state)
        for other, differs in ((self.make(seed=1), r"other seed 0 \(1 here\)"), (self.make(policy=shorter), "other plan")):
            with self.assertRaisesRegex(ValueError, differs):
                other.load_state_dict(state)

    def test_every_document_once_over_all_lanes(self):
        seen = [d for lane in (0, 1) for m in equipoise.BatchSampler(drawn(), longest_first, lanes=2, lane=lane, **SHAPE) for d in m]
        self.assertEqual(sorted(seen), list(range(480)))

    def test_reshuffled_epochs_are_planned_in_their_order(self):
        calls = []

        def counted(lengths, options):
            calls.append(lengths.tolist())
            return longest_first(lengths, options)

        sampler = equipoise.BatchSampler(drawn(), counted, reshuffle=True, seed=3, **SHAPE)
        epochs = [list(sampler) for _ in range(2)]
        self.assertEqual(calls[1], drawn()[np.random.RandomState([3, 1]).permutation(480)].tolist())
        for epoch in epochs:
            self.assertEqual(sorted(d for m in epoch for d in m), list(range(480)))
        self.assertNotEqual(*epochs)

    def test_tokens_per_step_options_and_what_is_wrong(self):
        seen = {}

        def look(lengths, options):
            seen.update(options)
            return longest_first(lengths, options)

        shape = {key: value for key, value in SHAPE.items() if key != "documents_per_step"}
        tokens = round(48 * drawn().mean())
        list(equipoise.BatchSampler(drawn(), equipoise.policy(look, options={"keep": 3}), tokens_per_step=tokens, **shape))
        self.assertEqual((seen["keep"], seen["documents_per_step"], seen["micro_batches"], len(seen["batches"])), (3, 48, 8, 10))
        with self.assertRaisesRegex(ValueError, "policy drops: does not fit"):
            list(equipoise.BatchSampler(drawn(), equipoise.policy(lambda *a: longest_first(*a)[1:], label="drops"), **SHAPE))
        with self.assertRaisesRegex(ValueError, "steps: expected a list of steps.* found None, returned by"):
            list(equipoise.BatchSampler(drawn(), lambda lengths, options: None, **SHAPE))

    def test_of_a_studys_row(self):
        study = {**STUDY, "batch": {**STUDY["batch"], "steps": 2}}
        result = equipoise.study(study, policies={"mine": equipoise.policy(longest_first, options={"keep": 1}), "no": lambda *_: None})
        ours = equipoise.BatchSampler.from_study(result, "mine", drawn(), lane=1, slices=True)
        theirs = equipoise.BatchSampler(
            drawn(), longest_first, lanes=2, lane=1, context=2, context_window=32768, sequences_per_step=8, slices=True)
        self.assertEqual(list(ours), list(theirs))
        with self.assertRaisesRegex(ValueError, "row: expected one that can be packed, found no, refused: policy no: steps"):
            equipoise.BatchSampler.from_study(result, "no", drawn())
        with self.assertRaisesRegex(ValueError, 'row: unknown row "mien", did you mean "mine"[?] .known: "plain", '):
            equipoise.BatchSampler.from_study(result, "mien", drawn())
        with self.assertRaisesRegex(KeyError, 'did you mean "mine"'):
            result["mien"]
        self.assertGreater(result["mine"]["measured"]["pack_ms"], 0)  # the function's time
        with self.assertRaisesRegex(ValueError, "functions stay in the process"):
            equipoise.BatchSampler.from_study(pickle.loads(pickle.dumps(result)), "mine", drawn())


class Loader(unittest.TestCase):
    """With a real DataLoader, where torch is installed."""

    @classmethod
    def setUpClass(cls):
        try:
            import torch
        except ImportError:
            raise unittest.SkipTest("torch is not installed")
        cls.torch = torch

    def loader(self, workers=0, documents=96, reshuffle=False, **options):
        lengths = drawn(documents)
        documents = [{"input_ids": np.arange(n) + 1000 * i} for i, n in enumerate(lengths)]
        sampler = equipoise.BatchSampler(lengths, "wlb", reshuffle=reshuffle, **SHAPE)
        return (
            lengths,
            sampler,
            self.torch.utils.data.DataLoader(
                equipoise.packed.PackedDataset(documents),
                batch_sampler=sampler,
                collate_fn=equipoise.packed.collate,
                num_workers=workers,
                **options,
            ),
        )

    def test_micro_batches_arrive_packed(self):
        for workers in (0, 2):
            lengths, sampler, loader = self.loader(workers)
            planned = list(sampler)
            sampler.set_epoch(0)
            for documents, batch in zip(planned, loader):
                borders = batch["cu_seqlens"].tolist()
                self.assertEqual(np.diff(borders).tolist(), [int(lengths[d]) for d in documents])
                self.assertEqual(batch["max_seqlen"], max(int(lengths[d]) for d in documents))
                for d, begin, end in zip(documents, borders, borders[1:]):
                    self.assertEqual(batch["position_ids"][0, begin:end].tolist(), list(range(end - begin)))
                    tokens = batch["input_ids"][0, begin:end]
                    self.assertEqual(tokens.tolist(), [1000 * d + i for i in range(end - begin)])
                    labels = batch["labels"][0, begin:end].tolist()
                    self.assertEqual(labels, tokens[1:].tolist() + [-100])

    def test_steps_are_the_plans_with_any_number_of_workers(self):
        # rest() before the loader is iterated, over two epochs: the plan's steps in its order, the last of the 14 documents left.
        for workers, persistent in ((0, False), (1, False), (2, True)):
            lengths, sampler, loader = self.loader(workers, 110, reshuffle=True, persistent_workers=persistent)
            planner = self.loader(documents=110, reshuffle=True)[1]
            for epoch in range(2):
                steps = [[[int(lengths[d]) for d in m] for m in step] for step in planner.steps()]
                self.assertEqual((sampler.epoch, sampler.rest()), (epoch, [len(step) for step in steps]), workers)
                self.assertEqual(sum(len(m) for m in steps[-1]), 14)
                left, batches = sampler.rest(), iter(loader)
                for count, step in zip(left, steps):
                    taken = [next(batches)["cu_seqlens"].diff().tolist() for _ in range(count)]
                    self.assertEqual(taken, step, workers)
                self.assertIsNone(next(batches, None))

    def test_what_workers_asked_ahead_is_left_until_it_is_trained_on(self):
        _, sampler, loader = self.loader(2, prefetch_factor=3)
        planned, whole = list(sampler), sampler.rest()
        sampler.set_epoch(0)
        batches = iter(loader)
        self.assertEqual(sum(sampler.rest()), sum(whole) - 6)  # 2 workers asked for 3 each, none was trained on
        for trained in range(sum(whole)):
            left = sampler.rest(consumed=trained, epoch=0)
            self.assertEqual((sum(left), left[1:]), (sum(whole) - trained, whole[len(whole) - len(left) + 1 :]))
            next(batches)
        self.assertIsNone(next(batches, None))
        self.assertEqual(sampler.rest(consumed=sum(whole), epoch=0), whole)  # of the next epoch
        with self.assertRaisesRegex(ValueError, f"consumed: expected an integer from 0 to {sum(whole)}, found"):
            sampler.rest(consumed=sum(whole) + 1, epoch=0)
        # An epoch that was left early goes on after what was trained on.
        sampler.load_state_dict(sampler.state_dict(consumed=3, epoch=0))
        self.assertEqual(list(sampler), planned[3:])

    def test_record_gives_the_lengths_of_a_live_loader(self):
        lengths, sampler, loader = self.loader()
        planned = [int(lengths[d]) for m in sampler for d in m]
        sampler.set_epoch(0)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "live.txt.zst"
            equipoise.record(loader, path)
            self.assertEqual(equipoise.read_trace(path).tolist(), planned)


if __name__ == "__main__":
    unittest.main(verbosity=2)

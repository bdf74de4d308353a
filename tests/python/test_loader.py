#!/usr/bin/env python3
"""equipoise.loader: a plan's micro-batches as a DataLoader that fills steps, pads, and goes on where it was."""

import itertools
import tempfile
import unittest
from pathlib import Path

import numpy as np

import equipoise
from equipoise.packed import IGNORED, collate

try:
    import torch

    from equipoise.loader import Loader, megatron, torchtitan
except ImportError:
    torch = None

LENGTHS = np.clip(equipoise.draw_trace("wlb-128k", 90, 0) // 1024, 4, 96)
DOCUMENTS = [{"input_ids": np.arange(n) + 1000 * i} for i, n in enumerate(LENGTHS)]


def sampler(policy="ffd", lanes=1, lane=0, **options):
    """Packs of 96 tokens: a few in a step of about 20 documents."""
    own = {"pack_length": 96} if policy == "ffd" else {}
    return equipoise.BatchSampler(LENGTHS, policy, lanes=lanes, lane=lane, documents_per_step=20, context_window=128, **own, **options)


def comparable(batch):
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in batch.items()}


class Filled(unittest.TestCase):
    def test_every_step_of_every_lane_has_as_many(self):
        lanes = [sampler(lanes=2, lane=lane, accumulate=4) for lane in range(2)]
        free = [sampler(lanes=2, lane=lane) for lane in range(2)]
        self.assertEqual({count for lane in lanes for count in lane.rest()}, {4})
        self.assertGreater(len({count for lane in free for count in lane.rest()}), 1)
        for filled, own in zip(lanes, free):
            self.assertEqual(len(filled), 4 * len(own.rest()))
            for step, same in zip(filled.steps(), own.steps()):
                self.assertEqual(step.micro_batches, same.micro_batches + [[]] * (4 - len(same)))

    def test_micro_batches_of_all_lanes_follow(self):
        counted = sampler("lpt", lanes=2, micro_batches=6)
        filled = sampler("lpt", lanes=2, accumulate=3)
        self.assertEqual(list(filled), list(counted))

    def test_a_plan_with_more_is_refused(self):
        with self.assertRaisesRegex(ValueError, "accumulate: expected at least 2, as many micro-batches as lpt gives a lane in a step, found 1"):
            list(sampler("lpt", micro_batches=2, accumulate=1))
        with self.assertRaisesRegex(ValueError, "accumulate: expected an integer from 1, found 0"):
            sampler(accumulate=0)

    def test_a_state_knows_it(self):
        other = sampler(accumulate=5)
        with self.assertRaisesRegex(ValueError, r"found other .*accumulate 5 \(4 here\)"):
            sampler(accumulate=4).load_state_dict(other.state_dict())


class Multiple(unittest.TestCase):
    def test_packs_hold_documents_with_their_padding(self):
        lengths = [4097, 4095] * 4  # pairs fill 8192 tokens, but not with each up to a multiple of 16
        shape = {"documents_per_step": 8, "pack_length": 8192}
        self.assertEqual([len(m) for m in equipoise.BatchSampler(lengths, "bfd", **shape)], [2] * 4)
        padded = [sum(-(-lengths[d] // 16) * 16 for d in m) for m in equipoise.BatchSampler(lengths, "bfd", multiple=16, **shape)]
        self.assertLessEqual(max(padded), 8192)
        self.assertEqual(sum(padded), 4 * (4112 + 4096))

    def test_pieces_are_of_documents_and_not_of_padding(self):
        sampler = equipoise.BatchSampler([9, 21, 30], "plain", slices=True, multiple=8, context_window=16, sequences_per_step=2, micro_batches=2)
        found = [piece for m in sampler for piece in m]
        self.assertEqual(sorted(found), [(0, 0, 9), (1, 0, 16), (1, 16, 21), (2, 0, 8), (2, 8, 24), (2, 24, 30)])

    def test_a_row_that_pads_sets_it_where_its_documents_are_whole(self):
        lengths = np.clip(equipoise.draw_trace("lmsys-chat-1m", 96, 2), 1, 500)
        pads = {"shard": "per-document", "remainder": "pad"}
        packs = [{"name": name, "pack_length": 512, **pads} for name in ("bfd", "ffs")]
        rows = [{"name": "lpt", **pads}, {"name": "fixed-greedy", "oversize": "split", **pads}]
        dealt = equipoise.policy(lambda lengths, options: [[[batch]] for batch in options["batches"]], label="dealt", **pads)
        with tempfile.TemporaryDirectory() as folder:
            equipoise.write_trace(lengths, Path(folder) / "lengths.npy")
            study = {"trace": {"file": f"{folder}/lengths.npy"}, "model": "qwen2.5-0.5b", "cluster": {"profile": "h100-sxm"}, "parallel": {"context": 8}}
            for policies, batch, multiple in ((packs + rows, {"documents_per_step": 24, "steps": 4}, 16), (rows[:1], {"sequences_per_step": 4, "steps": 3}, 1)):
                result = equipoise.study({**study, "batch": {"context_window": 512, **batch}, "policies": policies}, policies={"dealt": dealt})
                for row, plan in zip(result.policies, result.plans()["plans"]):
                    with self.subTest(row["label"], multiple=multiple):
                        sampler = equipoise.BatchSampler.from_study(result, row["label"], lengths, slices=True)
                        theirs = [[tuple(piece) for piece in m["slices"]] for step in plan["steps"] for m in step["lanes"][0]["micro_batches"] if m["slices"]]
                        self.assertEqual((sampler.multiple, list(sampler)[: len(theirs)]), (multiple, theirs))

    def test_pieces_are_cut_at_multiples(self):
        shape = {"slices": True, "sequences_per_step": 2, "micro_batches": 2}
        for policy, options in (("plain", {"context_window": 20}), ("chunkflow", {"chunk_size": 20, "documents_per_step": 3})):
            with self.subTest(policy), self.assertRaisesRegex(ValueError, r"multiple: expected one that divides where .*, found 8: the plan cuts document \d of \d+ tokens"):
                list(equipoise.BatchSampler([9, 21, 30], policy, multiple=8, **{"context_window": 40, **shape, **options}))


@unittest.skipIf(torch is None, "torch is not installed")
class Padded(unittest.TestCase):
    def test_each_document_to_a_multiple_and_all_to_a_length(self):
        found = collate([[1, 2, 3, 4, 5], [6, 7, 8, 9]], multiple=4, length=16, pad=99)
        self.assertEqual(found["cu_seqlens"].tolist(), [0, 8, 12, 16])
        self.assertEqual(found["input_ids"].tolist(), [[1, 2, 3, 4, 5, 99, 99, 99, 6, 7, 8, 9, 99, 99, 99, 99]])
        self.assertEqual(found["labels"].tolist(), [[2, 3, 4, 5] + 4 * [IGNORED] + [7, 8, 9] + 5 * [IGNORED]])
        self.assertEqual(found["position_ids"].tolist(), [[*range(8), *range(4), *range(4)]])
        self.assertEqual(found["max_seqlen"], 8)

    def test_no_documents_are_padding(self):
        for keys, tokens in (({}, 1), ({"multiple": 4}, 4), ({"length": 12}, 12)):
            found = collate([], **keys)
            self.assertEqual((found["cu_seqlens"].tolist(), found["labels"].tolist()), ([0, tokens], [[IGNORED] * tokens]))

    def test_what_does_not_fit_is_refused(self):
        with self.assertRaisesRegex(ValueError, "length: expected at least 8, the tokens of a micro-batch's documents with their padding, found 7"):
            collate([[1, 2, 3, 4, 5]], multiple=4, length=7)

    def test_documents_without_tokens_are_passed_over(self):
        found = collate([[], [1, 2], [], [3]], multiple=2)
        self.assertEqual((found["cu_seqlens"].tolist(), found["labels"].tolist()), ([0, 2, 4], [[2] + 3 * [IGNORED]]))
        self.assertEqual(collate([[]])["labels"].tolist(), [[IGNORED]])

    def test_names_of_frameworks(self):
        batch = collate([[5, 6, 7]], length=4)
        theirs = megatron(batch)
        self.assertEqual((theirs["loss_mask"].tolist(), theirs["labels"].tolist()), ([[1, 1, 0, 0]], [[6, 7, 0, 0]]))
        self.assertEqual(sorted(theirs), ["cu_seqlens", "labels", "loss_mask", "max_seqlen", "position_ids", "tokens"])
        inputs, labels = torchtitan(batch)
        self.assertEqual((inputs["input"].tolist(), inputs["positions"].tolist(), labels.tolist()), ([[5, 6, 7, 0]], [[0, 1, 2, 0]], [[6, 7, IGNORED, IGNORED]]))


@unittest.skipIf(torch is None, "torch is not installed")
class Loaded(unittest.TestCase):
    def test_batches_are_the_plans_with_any_number_of_workers(self):
        expected = [comparable(collate([DOCUMENTS[d]["input_ids"] for d in m], length=192)) for m in sampler(accumulate=4)]
        for workers in (0, 3):
            loader = Loader(DOCUMENTS, sampler(accumulate=4), length=192, num_workers=workers)
            self.assertEqual(len(loader), len(expected))
            self.assertEqual([comparable(batch) for batch in loader], expected)

    def test_anywhere_it_goes_on_as_if_it_had_not_ended(self):
        for workers in (0, 2):
            def loader():
                return Loader(DOCUMENTS, sampler(accumulate=3, reshuffle=True), endless=True, num_workers=workers)

            whole = [comparable(batch) for batch in itertools.islice(loader(), 40)]
            for done in (0, 1, 6, len(loader()), len(loader()) + 4):  # also at the end of an epoch and in the next
                stopped = loader()
                for _ in itertools.islice(stopped, done):
                    pass
                fresh = loader()
                fresh.load_state_dict(stopped.state_dict())
                for goes_on in (fresh, stopped):  # also the one itself, whose workers have asked for more
                    self.assertEqual([comparable(batch) for batch in itertools.islice(goes_on, 40 - done)], whole[done:], (workers, done))

    def test_steps(self):
        loader = Loader(DOCUMENTS, sampler(accumulate=3), num_workers=2)
        steps = list(loader.steps())
        self.assertEqual([len(step) for step in steps], [3] * (len(loader) // 3))
        self.assertEqual(loader.state_dict()["epoch"], 1)
        free = sampler()
        counts = free.rest()
        self.assertEqual([len(step) for step in Loader(DOCUMENTS, free).steps()], counts)
        again = Loader(DOCUMENTS, sampler(accumulate=3))
        next(again.steps())
        self.assertEqual((again.state_dict()["step"], again.state_dict()["micro_batch"]), (1, 0))
        self.assertEqual([comparable(b) for step in again.steps() for b in step], [comparable(b) for step in steps[1:] for b in step])

    def test_an_epoch_ends_with_a_step_that_has_nothing_for_this_lane(self):
        def loader(lane, **options):  # two documents in a step, one for each lane; the third step has one, which is lane 0's
            shape = {"context_window": 8, "documents_per_step": 2, "micro_batches": 2}
            return Loader([[1, 2, 3, 4]] * 5, equipoise.BatchSampler([4] * 5, "lpt", lanes=2, lane=lane, **shape), **options)

        for lane, counts in ((0, [1, 1, 1]), (1, [1, 1, 0])):
            for workers in (0, 2):
                ours = loader(lane, num_workers=workers)
                for epoch in (1, 2):
                    self.assertEqual(len(list(ours)), sum(counts))
                    self.assertEqual([ours.state_dict()[key] for key in ("epoch", "step", "micro_batch")], [epoch, 0, 0])
                self.assertEqual([len(step) for step in ours.steps()], counts)
                self.assertEqual(len(list(itertools.islice(loader(lane, endless=True, num_workers=workers), 7))), 7)
                endless = loader(lane, endless=True, num_workers=workers)
                self.assertEqual([len(step) for step in itertools.islice(endless.steps(), 6)], 2 * counts)
                self.assertEqual(endless.state_dict()["epoch"], 2)  # as all lanes

    def test_a_step_without_micro_batches_of_this_lane_is_not_repeated(self):
        def alone(lengths, options):  # one document in a step, on one of two lanes in turn
            return [[[batch], []] if step % 2 == 0 else [[], [batch]] for step, batch in enumerate(options["batches"])]

        def loader(**options):
            own = equipoise.BatchSampler([4] * 5, alone, lanes=2, lane=0, context_window=8, documents_per_step=1, micro_batches=2)
            return Loader([[i] * 4 for i in range(5)], own, **options)

        for workers in (0, 2):
            whole = [[b["input_ids"][0, 0].item() for b in step] for step in loader(num_workers=workers).steps()]
            self.assertEqual(whole, [[0], [], [2], [], [4]])
            for done in range(5):
                stopped = loader(num_workers=workers)
                for _ in zip(range(done), stopped.steps()):
                    pass
                self.assertEqual((stopped.state_dict()["step"], stopped.state_dict()["micro_batch"]), (done, 0))
                fresh = loader(num_workers=workers)
                fresh.load_state_dict(stopped.state_dict())
                self.assertEqual([[b["input_ids"][0, 0].item() for b in step] for step in fresh.steps()], whole[done:])

    def test_an_epoch_begins_where_it_is_told(self):
        loader = Loader(DOCUMENTS, sampler(accumulate=3, reshuffle=True))
        first = [comparable(batch) for batch in loader]
        loader.set_epoch(1)  # where it is
        second = comparable(next(iter(loader)))
        loader.set_epoch(0)
        self.assertEqual(comparable(next(iter(loader))), first[0])
        self.assertNotEqual(second, first[0])

    def test_a_collate_of_a_framework_gets_documents_where_there_are_none(self):
        def theirs(samples):
            return {"labels": torch.cat([torch.from_numpy(sample["input_ids"]) for sample in samples])}

        shortest = int(LENGTHS.min())
        for micro_batch, batch in zip(sampler(accumulate=4), Loader(DOCUMENTS, sampler(accumulate=4), collate_fn=theirs)):
            expected = [t for d in micro_batch for t in DOCUMENTS[d]["input_ids"].tolist()] or [IGNORED] * shortest
            self.assertEqual(batch["labels"].tolist(), expected)

    def test_what_a_collate_of_a_framework_cannot_use_is_refused(self):
        for options, own, name in (({}, {"form": megatron}, "form"), ({}, {"length": 192}, "length"), ({}, {"pad": 1}, "pad"), ({}, {"field": "x"}, "field"),
                                   ({"multiple": 4}, {}, "multiple"), ({"slices": True}, {}, "slices"), ({"multiple": 4}, {"pad": 1}, "pad, multiple")):
            with self.subTest(name), self.assertRaisesRegex(ValueError, f"collate_fn: expected none with {name}, which .*, found <"):
                Loader(DOCUMENTS, sampler(**options), collate_fn=lambda samples: {}, **own)


if __name__ == "__main__":
    unittest.main(verbosity=2)

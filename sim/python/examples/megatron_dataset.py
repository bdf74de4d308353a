#!/usr/bin/env python3
"""Packed micro-batches as a dataset of Megatron-Core, which its own builder, samplers and loops take.

  pip install .                                   # in Equipoise's folder: the module
  pip install megatron-core torch; python3 megatron_dataset.py [--policy wlb] [--window 2048]

Written against Megatron-Core 0.16.1. Megatron-Core asks for a class with an index of samples (MegatronDataset), and hands
sample i of a global batch to data-parallel rank i mod DP. PackedDataset plans all lanes at once and puts micro-batch m of
lane r in step s at place (s x M + m) x DP + r, so that the samplers of Megatron-LM deal each rank its lane. Micro-batch
size is 1: a sample is a micro-batch, several documents in one row.

A sample is padded to `sequence_length`, as loops with fixed shapes ask for, so a policy must stay within it: plain,
fixed-greedy, or wlb with max_tokens. Padding is a last document of its own.

This script makes documents, builds the dataset and counts what it holds. Training is Megatron-LM's, in a copy of its
pretrain_gpt.py:

  from megatron_dataset import build, forward_step       # in place of its own

  def train_valid_test_datasets_provider(samples, vp_stage=None):
      args = get_args()
      keys = dict(sequence_length=args.seq_length, data_parallel=args.data_parallel_size,
                  micro_batches=args.global_batch_size // args.data_parallel_size, policy="wlb",
                  options={"queues": 1, "max_tokens": args.seq_length, "sequences_per_step": args.global_batch_size,
                           "oversize": "split"})
      return build(args.data_path[0], **keys), None, None

  --micro-batch-size 1 --dataloader-type single --calculate-per-token-loss --transformer-impl transformer_engine

forward_step hands the borders of documents to the attention (Transformer Engine's; Megatron's local one refuses them). The
dataset is built on every rank, so nothing is sent over TP. Samples are not cut for context parallelism.
"""

import argparse
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Dict

import numpy as np
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.megatron_dataset import MegatronDataset
from megatron.core.packed_seq_params import PackedSeqParams

import equipoise


@dataclass
class PackedDatasetConfig(BlendedMegatronDatasetConfig):
    policy: str = "wlb"
    options: Dict[str, Any] = field(default_factory=dict)  # of the policy, as for BatchSampler
    data_parallel: int = 1
    micro_batches: int = 4  # per rank and step: global batch / DP


class PackedDataset(MegatronDataset):
    """Micro-batches of an IndexedDataset's documents, in the order in which Megatron's samplers hand them out."""

    def __init__(self, dataset, dataset_path, indices, num_samples, index_split, config):
        super().__init__(dataset, dataset_path, indices, num_samples, index_split, config)
        lengths = dataset.sequence_lengths[indices]
        lanes, per_lane = config.data_parallel, config.micro_batches
        plan = equipoise.pack(
            lengths, config.policy, lanes=lanes, micro_batches=lanes * per_lane,
            context_window=config.sequence_length, **config.options)
        self.samples = []
        for step in plan.steps:
            for place in range(per_lane):
                for lane in range(lanes):
                    if len(step[lane]) > per_lane:
                        raise ValueError(f"policy {config.policy}: a lane of {len(step[lane])} micro-batches, expected {per_lane}")
                    self.samples.append(step[lane][place] if place < len(step[lane]) else [])

    @staticmethod
    def numel_low_level_dataset(low_level_dataset):
        return low_level_dataset.sequence_lengths.shape[0]

    @staticmethod
    def build_low_level_dataset(dataset_path, config):
        return IndexedDataset(dataset_path, multimodal=False, mmap=config.mmap_bin_files)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, idx):
        width = self.config.sequence_length
        pieces = [self.dataset.get(int(self.indices[document]), begin, end - begin) for document, begin, end in self.samples[idx]]
        sizes = [len(piece) for piece in pieces]
        if sum(sizes) > width:
            raise ValueError(f"sample {idx}: {sum(sizes)} tokens, expected at most sequence_length, {width}")
        if sum(sizes) < width:
            sizes.append(width - sum(sizes))
            pieces.append(np.zeros(sizes[-1], dtype=np.int64))
        ends = np.cumsum(sizes)
        tokens = np.concatenate(pieces).astype(np.int64)
        labels, mask = np.roll(tokens, -1), np.ones(width, dtype=np.float32)
        mask[ends - 1] = 0  # because the next token is another document's
        mask[sum(end - begin for _, begin, end in self.samples[idx]):] = 0
        return {
            "tokens": torch.from_numpy(tokens),
            "labels": torch.from_numpy(labels),
            "loss_mask": torch.from_numpy(mask),
            "position_ids": torch.from_numpy(np.arange(width) - np.repeat(ends - sizes, sizes)),
            "cu_seqlens": torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
            "max_seqlen": torch.tensor(max(sizes)),
        }


class NoTokenizer:
    """The builder asks a tokenizer for its name only."""

    unique_identifiers = {"class": "NoTokenizer"}


def write_documents(prefix, lengths, seed=0):
    """An IndexedDataset of random tokens, a document each; it represents one that preprocess_data.py made."""
    random = np.random.RandomState(seed)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    for length in lengths:
        builder.add_document(torch.from_numpy(random.randint(1, 1000, size=int(length))), [int(length)])
    builder.finalize(f"{prefix}.idx")


def build(prefix, **keys):
    """The training split, as pretrain_gpt.py's train_valid_test_datasets_provider builds it."""
    config = PackedDatasetConfig(random_seed=0, blend=([str(prefix)], None), split="1,0,0", tokenizer=NoTokenizer(), **keys)
    return BlendedMegatronDatasetBuilder(PackedDataset, [None, None, None], lambda: True, config).build()[0]


def loss_of(mask, losses):
    """The sum of a micro-batch's losses, its tokens, and both for the log, as Megatron's schedules take them."""
    loss, tokens = (losses.float().view(-1) * mask.view(-1)).sum(), mask.sum().int()
    return loss, tokens, {"lm loss": torch.stack([loss.detach(), tokens.to(loss.dtype)])}


def forward_step(iterator, model):
    """One micro-batch through the model, each document attending to itself: what Megatron's schedules call."""
    device = next(model.parameters()).device
    batch = {key: value.to(device) for key, value in next(iterator).items()}
    ends, longest = batch["cu_seqlens"][0], int(batch["max_seqlen"])
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=longest, max_seqlen_kv=longest)
    losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"], packed_seq_params=packed)
    return losses, partial(loss_of, batch["loss_mask"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="wlb", help="see `equipoise list policies`")
    parser.add_argument("--window", type=int, default=2048, help="sequence length, tokens")
    args = parser.parse_args()
    lengths = np.clip(equipoise.draw_trace("wlb-128k", 400, 0) // 64, 8, args.window)
    options = {"queues": 1, "max_tokens": args.window} if args.policy == "wlb" else {}
    with tempfile.TemporaryDirectory() as folder:
        write_documents(Path(folder) / "documents", lengths)
        dataset = build(Path(folder) / "documents", sequence_length=args.window, policy=args.policy, data_parallel=2, micro_batches=2,
                        options={"sequences_per_step": 4, "oversize": "split", **options})
        loader = torch.utils.data.DataLoader(dataset, batch_size=1)  # Megatron-LM's sampler deals them to ranks
        real = sum(int((batch["cu_seqlens"][0].diff() > 0).sum()) for batch in loader)
        print(f"{len(dataset)} micro-batches of {args.window} tokens hold {real} documents and paddings of {len(lengths)} documents")


if __name__ == "__main__":
    main()

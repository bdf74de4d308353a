#!/usr/bin/env python3
"""Megatron-Core's schedules on micro-batches that a policy of Equipoise packs, from its own files of documents.

  pip install .                                   # in Equipoise's folder: the module
  pip install megatron-core torch; python3 megatron_loop.py [--policy wlb]

Run with Megatron-Core 0.16.1. Every data-parallel rank has a loader of its lane, which all its tensor and pipeline ranks have,
too. A micro-batch is one row of `length` tokens, as loops with fixed shapes ask for, and its padding is a document of its own. With
context parallelism, multiple=2 * CP counts and fills each document up, so that it can be cut. This script makes documents and counts what the loader
gives. Training is Megatron-LM's, in a copy of its pretrain_gpt.py:

  from megatron_loop import forward_step, loader_of      # in place of its own

  def train_valid_test_datasets_provider(samples, vp_stage=None):
      args = get_args()
      loader = loader_of(args.data_path[0], "wlb", ranks=args.data_parallel_size, rank=mpu.get_data_parallel_rank(),
                         accumulate=args.global_batch_size // args.data_parallel_size, length=args.seq_length,
                         queues=1, max_tokens=args.seq_length, sequences_per_step=args.global_batch_size, oversize="split")
      return loader, None, None
  train_valid_test_datasets_provider.is_distributed = True

  --micro-batch-size 1 --dataloader-type external --calculate-per-token-loss --transformer-impl transformer_engine

forward_step hands the borders of documents to the attention (Transformer Engine's; Megatron's local one refuses them). Keep
loader.state_dict() with your checkpoints.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import tiny
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.packed_seq_params import PackedSeqParams

import equipoise
from equipoise.loader import Loader, megatron


def loader_of(prefix, policy, ranks=1, rank=0, accumulate=1, length=None, workers=2, **options):
    """The loader of a data-parallel rank over the documents of PREFIX.bin and PREFIX.idx."""
    data = IndexedDataset(str(prefix))
    sampler = equipoise.BatchSampler(data.sequence_lengths, policy, lanes=ranks, lane=rank, accumulate=accumulate, slices=True, **options)
    return Loader(data, sampler, form=megatron, length=length, endless=True, num_workers=workers)


def loss_of(mask, losses):
    """The sum of a micro-batch's losses, its tokens, and both for the log, as Megatron's schedules take them."""
    loss, tokens = (losses.float().view(-1) * mask.view(-1)).sum(), mask.sum().int()
    return loss, tokens, {"lm loss": torch.stack([loss.detach(), tokens.to(loss.dtype)])}


def forward_step(iterator, model):
    """One micro-batch through the model, each document attending to itself: what Megatron's schedules call."""
    device = next(model.parameters()).device
    batch = {key: value.to(device) if torch.is_tensor(value) else value for key, value in next(iterator).items()}
    ends, longest = batch["cu_seqlens"], batch["max_seqlen"]
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=longest, max_seqlen_kv=longest)
    losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"], packed_seq_params=packed)
    return losses, partial(loss_of, batch["loss_mask"])


def write_documents(prefix, documents):
    """An IndexedDataset of token lists, a document each; it represents one that preprocess_data.py made."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    for tokens in documents:
        builder.add_document(torch.tensor(tokens), [len(tokens)])
    builder.finalize(f"{prefix}.idx")


def main():
    args, data = tiny.arguments(__doc__).parse_args(), tiny.documents()
    with tempfile.TemporaryDirectory() as folder:
        write_documents(Path(folder) / "documents", [document["input_ids"] for document in data])
        loader = loader_of(Path(folder) / "documents", args.policy, accumulate=3, length=256, documents_per_step=20)
        for number, step in zip(range(args.steps), loader.steps()):
            labels = sum(int(batch["loss_mask"].sum()) for batch in step)
            print(f"step {number + 1}: {len(step)} micro-batches of 256 tokens with {labels} labels")


if __name__ == "__main__":
    main()

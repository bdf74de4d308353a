#!/usr/bin/env python3
"""Trains a small language model on packed documents, with a policy of Equipoise as its batch sampler.

  python3 train_packed.py [--policy wlb] [--steps 30] [--checkpoint run.pt] [--resume run.pt]
  torchrun --nproc_per_node 2 train_packed.py    # two replicas: each takes its lane of the same plans

Documents are of very different lengths, as in long-context training, only shorter. Each micro-batch is one
row of whole documents. Attention never crosses a document: it runs per document, by cu_seqlens, where a model
on GPUs would hand cu_seqlens to its variable-length kernel. Positions (rotary) begin again in each document,
by position_ids. Plain PyTorch, 1.13 or later; a minute on one CPU core.

What to change for a real model: `documents`, `lengths`, and `attention` (flash_attn_varlen_func takes the
same cu_seqlens and max_seqlen).
"""

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import equipoise
from equipoise.loader import Loader

VOCAB, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
WINDOW = 2048  # tokens of a full micro-batch


def documents(count=320, seed=0):
    """Tokens of synthetic documents: each repeats a short phrase of its own, so that there is something to
    learn. Lengths have the shape of long-context training (published distribution wlb-128k), 1/64 as long."""
    lengths = np.clip(equipoise.draw_trace("wlb-128k", count, seed) // 64, 8, WINDOW)
    random = np.random.RandomState(seed)
    phrases = [random.randint(0, VOCAB, size=random.randint(3, 9)) for _ in lengths]
    return [{"input_ids": np.resize(phrase, int(n))} for phrase, n in zip(phrases, lengths)]


def rotate(x, positions):
    """Rotary position embedding of x (tokens, heads, head_dim) at positions (tokens)."""
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = positions[:, None, None].float() * frequency
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


def attention(q, k, v, cu_seqlens):
    """Causal attention (tokens, heads, head_dim) inside each document."""
    out = []
    for begin, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):
        scores = torch.einsum("qhd,khd->hqk", q[begin:end], k[begin:end]) / q.shape[-1] ** 0.5
        n = end - begin
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        out.append(
            torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v[begin:end])
        )
    return torch.cat(out)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x, positions, cu_seqlens):
        q, k, v = self.qkv(self.norms[0](x)).view(-1, 3, HEADS, WIDTH // HEADS).unbind(1)
        mixed = attention(rotate(q, positions), rotate(k, positions), v, cu_seqlens)
        x = x + self.out(mixed.reshape(-1, WIDTH))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])

    def forward(self, batch):
        """Sum of the loss over the labels of a micro-batch."""
        x = self.embedding(batch["input_ids"][0])
        for layer in self.layers:
            x = layer(x, batch["position_ids"][0], batch["cu_seqlens"])
        return functional.cross_entropy(
            self.head(x), batch["labels"][0], ignore_index=equipoise.packed.IGNORED, reduction="sum"
        )


def add_over_replicas(tensors, replicas):
    if replicas > 1:
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)


def train_step(model, optimizer, micro_batches, replicas):
    """One optimizer step over this replica's micro-batches: the gradient of the mean loss of all replicas'
    labels."""
    optimizer.zero_grad()
    loss, labels = torch.zeros(1), torch.zeros(1)
    for batch in micro_batches:
        part = model(batch)
        part.backward()
        loss += part.detach()
        labels += (batch["labels"] != equipoise.packed.IGNORED).sum()
    for parameter in model.parameters():  # a replica may have no micro-batch in a step
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    add_over_replicas([loss, labels, *(p.grad for p in model.parameters())], replicas)
    for parameter in model.parameters():
        parameter.grad /= labels
    optimizer.step()
    return float(loss / labels)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="wlb", help="see `equipoise list policies`")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps in all")
    parser.add_argument("--checkpoint", help="written at the end")
    parser.add_argument("--resume", help="a checkpoint to go on from")
    args = parser.parse_args()
    rank, replicas = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if replicas > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    data = documents()
    lengths = [len(d["input_ids"]) for d in data]
    # Micro-batches are weighed by the predicted time of a model on a device: yours, with a profile of your GPUs.
    weights = {"model": "qwen2.5-0.5b", "profile": "cpu", "queues": 1}
    sampler = equipoise.BatchSampler(
        lengths,
        args.policy,
        lanes=replicas,
        lane=rank,
        reshuffle=True,
        context_window=WINDOW,
        documents_per_step=40,
        micro_batches=4,
        **weights,
    )
    loader = Loader(data, sampler, endless=True)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    done = 0
    if args.resume:
        state = torch.load(args.resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        done = state["steps"]
    loading, steps = 0.0, loader.steps()
    while done < args.steps:
        begin = time.perf_counter()
        micro_batches = next(steps)  # those of this lane, which may be none
        loading += time.perf_counter() - begin
        loss = train_step(model, optimizer, micro_batches, replicas)
        done += 1
        if rank == 0 and (done % 5 == 0 or done == args.steps):
            tokens = [b["input_ids"].numel() for b in micro_batches]
            print(f"step {done}: loss {loss:.4f}, micro-batches of {tokens} tokens", flush=True)
    if rank == 0:
        print(f"planning and loading: {1000 * loading / args.steps:.2f} ms per step (measured)")
        if args.checkpoint:
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "steps": done,
                    "loader": loader.state_dict(),
                },
                args.checkpoint,
            )
    if replicas > 1:  # otherwise Gloo's threads are alive while the interpreter ends, which sometimes aborts
                      # it
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

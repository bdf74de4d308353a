#!/usr/bin/env python3
"""A loop of Accelerate on micro-batches that a policy of Equipoise packs.

  pip install .                                        # in Equipoise's folder: the module
  pip install accelerate transformers torch; python3 accelerate_loop.py [--policy wlb] [--steps 3] [--state FOLDER]
  accelerate launch --cpu --num_processes 2 accelerate_loop.py      # each rank takes its lane of the same plan

Run with Accelerate 1.15.0. `prepare` takes the loader as it is, and save_state and load_state have its place. The gradient is
that of the mean loss of a step's labels on all ranks: Accelerate takes means over micro-batches and ranks, so their sums of
losses are multiplied by both numbers. For your own model, replace `tiny`, leave out cpu, and move batches to accelerator.device.
"""

import os
from itertools import islice

import tiny
import torch
from accelerate import Accelerator

from equipoise.loader import Loader


def main():
    args = tiny.arguments(__doc__).parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=tiny.MICRO_BATCHES)
    ranks, data, model = accelerator.num_processes, tiny.documents(), tiny.model()
    sampler = tiny.sampler(data, args.policy, ranks, accelerator.process_index)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=tiny.RATE), Loader(data, sampler, endless=True, num_workers=args.workers))
    if args.state and os.path.exists(args.state):
        accelerator.load_state(args.state)
    for step in islice(loader.steps(), args.steps):
        labels, losses = accelerator.reduce(tiny.labels_of(step).float()), 0.0
        for batch in step:
            with accelerator.accumulate(model):
                loss = tiny.loss_sum(model, batch)
                accelerator.backward(loss * len(step) * ranks / labels)
                optimizer.step()
                optimizer.zero_grad()
            losses += loss.detach()
        accelerator.print(f"loss {float(accelerator.reduce(losses) / labels):.4f}")
    if args.state:
        accelerator.save_state(args.state)
    if args.save and accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), args.save)


if __name__ == "__main__":
    main()

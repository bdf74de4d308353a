#!/usr/bin/env python3
"""DeepSpeed's engine on micro-batches that a policy of Equipoise packs, with the config that `export` prints.

  pip install .                                        # in Equipoise's folder: the module
  equipoise export study.json --for deepspeed > config.json
  pip install deepspeed transformers torch; deepspeed deepspeed_engine.py --config config.json [--policy wlb] [--steps 3] [--state FOLDER]

Run with DeepSpeed 0.19.8. gradient_accumulation_steps has to be `accumulate`, and every rank has as many micro-batches, so that
ZeRO's collectives meet. The gradient is that of the mean loss of a step's labels on all ranks: the engine takes means over
micro-batches and ranks, so sums of losses are multiplied by both numbers. For your own model, replace `tiny`, and move batches to
engine.device.
"""

import json
import os
from itertools import islice

import deepspeed
import tiny
import torch

from equipoise.loader import Loader


def main():
    parser = tiny.arguments(__doc__)
    parser.add_argument("--config", required=True, help="what `equipoise export --for deepspeed` prints")
    parser.add_argument("--plain", action="store_true", help="in float32 and without clipping of gradients, whatever the config has")
    parser.add_argument("--local_rank", help="which DeepSpeed's launcher gives")
    args = parser.parse_args()
    with open(args.config) as file:
        config = {**json.load(file), "zero_allow_untested_optimizer": True}
    if args.plain:
        config.update(bf16={"enabled": False}, gradient_clipping=0.0)
    deepspeed.init_distributed()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    data, model = tiny.documents(), tiny.model()
    loader = Loader(data, tiny.sampler(data, args.policy, ranks, rank), endless=True, num_workers=args.workers)
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=tiny.RATE), config=config)
    if args.state and os.path.exists(args.state):
        loader.load_state_dict(engine.load_checkpoint(args.state)[1]["loader"])
    for step in islice(loader.steps(), args.steps):
        labels, losses = tiny.labels_of(step).float(), torch.zeros(())
        torch.distributed.all_reduce(labels)
        for batch in step:
            loss = tiny.loss_sum(engine, batch)
            engine.backward(loss * len(step) * ranks / labels)
            engine.step()
            losses += loss.detach()
        torch.distributed.all_reduce(losses)
        if rank == 0:
            print(f"loss {float(losses / labels):.4f}")
    if args.state:
        engine.save_checkpoint(args.state, client_state={"loader": loader.state_dict()})
    if args.save:
        weights = {name: deepspeed.utils.safe_get_full_fp32_param(p).clone() for name, p in engine.module.named_parameters()}
        if rank == 0:
            torch.save(weights, args.save)


if __name__ == "__main__":
    main()

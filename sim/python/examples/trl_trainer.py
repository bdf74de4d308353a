#!/usr/bin/env python3
"""TRL's SFTTrainer with micro-batches that a policy of Equipoise packs, instead of its own packing.

  pip install .                                   # in Equipoise's folder: the module
  pip install trl torch; python3 trl_trainer.py [--policy wlb] [--steps 3]
  torchrun --nproc_per_node 2 trl_trainer.py      # each rank takes its lane of the same plan

Written against TRL 1.16.0 (transformers, datasets, tokenizers and accelerate come with it). The trainer keeps whole documents (packing=False, padding_free=True): its collator lays those of a micro-batch one behind
the other with position_ids that begin again, by which the model keeps documents apart. All that changes is which
documents a micro-batch holds: get_train_dataloader. gradient_accumulation_steps is the micro-batches of a rank in a step;
a policy that makes that many (plain, fixed-greedy, wlb, lpt) ends each optimizer step where its plan does. The example
trains a model of 2 random layers on random tokens, so that it needs no download. For your own, copy PackedTrainer and give it
your model, its tokenizer and a dataset with `input_ids`; leave out use_cpu, and set bf16 and an attn_implementation that
knows position_ids (flash_attention_2) on GPUs. A resumed trainer skips the micro-batches that it saw.
"""

import argparse
import os

import numpy as np
from datasets import Dataset
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

import equipoise


class PackedTrainer(SFTTrainer):
    """An SFTTrainer whose micro-batches are a plan's. `policy` and `pack_options` are those of BatchSampler."""

    def __init__(self, *args, policy="wlb", pack_options=None, **kwargs):
        self.policy, self.pack_options = policy, pack_options or {}
        super().__init__(*args, **kwargs)

    def get_train_dataloader(self):
        lengths = [len(tokens) for tokens in self.train_dataset["input_ids"]]
        world = self.args.world_size
        sampler = equipoise.BatchSampler(
            lengths, self.policy, lanes=world, lane=self.args.process_index,
            micro_batches=world * self.args.gradient_accumulation_steps, **self.pack_options)
        # Does not go through accelerate, which would deal the micro-batches to ranks again: each rank has its
        # lane.
        return DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)


def tokenizer_of(words=64):
    """A tokenizer that the trainer can ask for its padding; the documents are tokens already."""
    vocabulary = {**{f"w{i}": i for i in range(words)}, "<pad>": words, "<eos>": words + 1}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="w0")), pad_token="<pad>", eos_token="<eos>")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="wlb", help="see `equipoise list policies`")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", default=os.path.join(os.environ.get("TMPDIR", "/tmp"), "equipoise-trl"))
    args = parser.parse_args()
    window, random = 512, np.random.RandomState(0)
    lengths = np.clip(equipoise.draw_trace("wlb-128k", 200, 0) // 256, 8, window)
    data = Dataset.from_dict({"input_ids": [random.randint(0, 64, size=int(n)).tolist() for n in lengths]})
    config = Qwen2Config(vocab_size=66, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2)
    settings = SFTConfig(
        output_dir=args.out, max_steps=args.steps, per_device_train_batch_size=1, gradient_accumulation_steps=4, max_length=None,
        packing=False, padding_free=True, learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
        gradient_checkpointing=False)
    trainer = PackedTrainer(
        model=Qwen2ForCausalLM(config), args=settings, train_dataset=data, processing_class=tokenizer_of(), policy=args.policy,
        pack_options={"context_window": window, "documents_per_step": 40, "queues": 1} if args.policy == "wlb" else {"context_window": window, "documents_per_step": 40})
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(f"step {entry['step']}: loss {float(entry['loss']):.4f}")


if __name__ == "__main__":
    main()

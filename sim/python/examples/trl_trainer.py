#!/usr/bin/env python3
"""TRL's SFTTrainer with micro-batches that a policy of Equipoise packs, instead of its own packing.

  pip install .                                   # in Equipoise's folder: the module
  pip install trl torch; python3 trl_trainer.py [--policy wlb] [--steps 3] [--state FOLDER]
  torchrun --nproc_per_node 2 trl_trainer.py      # each rank takes its lane of the same plan

Run with TRL 1.16.0 (transformers, datasets, tokenizers and accelerate come with it). The trainer keeps whole documents
(packing=False, padding_free=True): its collator lays those of a micro-batch one behind the other with position_ids that begin
again, by which the model keeps documents apart, and knows which tokens have a loss. All that changes is which documents a
micro-batch holds: get_train_dataloader. gradient_accumulation_steps has to be `accumulate`. A trainer that resumes from its
checkpoint skips the micro-batches that it saw. The example trains on a CPU and without a download. For your own, replace `tiny`,
leave out use_cpu, and set bf16 and an attn_implementation that knows position_ids (flash_attention_2) on GPUs.
"""

import os

import tiny
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from equipoise.loader import Loader


def tokenizer_of(words):
    """A tokenizer that the trainer can ask for its padding; the documents are tokens already."""
    vocabulary = {**{f"w{i}": i for i in range(words)}, "<pad>": words, "<eos>": words + 1}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="w0")), pad_token="<pad>", eos_token="<eos>")


def main():
    args = tiny.arguments(__doc__).parse_args()
    data, resumes = tiny.documents(), bool(args.state) and os.path.exists(args.state)
    settings = SFTConfig(
        output_dir=args.state or os.path.join(os.environ.get("TMPDIR", "/tmp"), "equipoise-trl"), max_steps=args.steps, save_steps=1,
        per_device_train_batch_size=1, gradient_accumulation_steps=tiny.MICRO_BATCHES, max_length=None, packing=False, padding_free=True,
        optim="sgd", learning_rate=tiny.RATE, lr_scheduler_type="constant", max_grad_norm=0, logging_steps=1, report_to=[], use_cpu=True,
        bf16=False, gradient_checkpointing=False, save_strategy="steps" if args.state else "no")
    trainer = SFTTrainer(model=tiny.model(), args=settings, train_dataset=Dataset.from_list(data), processing_class=tokenizer_of(tiny.WORDS))
    sampler = tiny.sampler(data, args.policy, settings.world_size, settings.process_index)
    loader = Loader(trainer.train_dataset, sampler, collate_fn=trainer.data_collator, num_workers=args.workers)
    trainer.get_train_dataloader = lambda: loader
    trainer.train(resume_from_checkpoint=resumes)
    for entry in trainer.state.log_history:
        if "loss" in entry and trainer.is_world_process_zero():
            print(f"loss {float(entry['loss']):.4f}")
    if args.save and trainer.is_world_process_zero():
        torch.save(trainer.accelerator.unwrap_model(trainer.model).state_dict(), args.save)


if __name__ == "__main__":
    main()

"""torchtitan's trainer on micro-batches that a policy of Equipoise packs, with the config that `export` prints.

  pip install .                                   # in Equipoise's folder: the module
  equipoise export study.json --for torchtitan > config.toml
  pip install torchtitan==0.2.2 torch; PYTHONPATH=sim/python/examples CONFIG_FILE=config.toml ./run_train.sh \\
    --experimental.custom_import torchtitan_job --model.name llama3_packed --model.flavor 8B_flex

Run with torchtitan 0.2.2. Importing this module registers its Llama 3 with a loader of the plan: local_batch_size has to be 1,
since a micro-batch is a row of seq_len tokens, and global_batch_size counts the micro-batches of a step. The trainer divides sums of
losses by the labels of a step on all ranks, and saves and restores the loader's place with its checkpoints. Its attention keeps
documents apart by the end-of-document token, with which yours must end (attn_type flex or varlen), and positions are the plan's.
For your own data, replace `tiny`.
"""

from dataclasses import replace

import tiny
from torchtitan.models.llama3 import get_train_spec
from torchtitan.protocols.train_spec import register_train_spec

from equipoise.loader import Loader, torchtitan


def build_dataloader(dp_world_size, dp_rank, tokenizer, job_config):
    training = job_config.training
    if training.local_batch_size != 1 or training.global_batch_size != tiny.MICRO_BATCHES * dp_world_size:
        raise ValueError(f"training: expected local_batch_size 1 and global_batch_size {tiny.MICRO_BATCHES * dp_world_size}, found {training}")
    data = tiny.documents()
    return Loader(data, tiny.sampler(data, lanes=dp_world_size, lane=dp_rank), form=torchtitan, length=training.seq_len, endless=True, num_workers=2)


register_train_spec("llama3_packed", replace(get_train_spec(), build_dataloader_fn=build_dataloader))

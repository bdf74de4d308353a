#!/usr/bin/env python3
"""verl's micro-batches by the time that a policy of Equipoise foretells, instead of by verl's constants of a 7B model.

  pip install .                       # in Equipoise's folder: the module
  pip install verl; python3 verl_balance.py

Written against verl 0.9.1. With use_dynamic_bsz verl deals the sequences of a batch to as many micro-batches as their
tokens need, and balances 24576 n + n^2 of each sequence of n tokens. use_policy() has it ask Equipoise instead: the same
number of micro-batches, balanced by the profiled time of your model on your GPU. The number of micro-batches and the token
limit stay verl's. This script shows both partitions of a batch. Training is verl's: put these two lines into a module,
balance.py, and both files where every worker imports from (PYTHONPATH),

  from verl_balance import use_policy
  use_policy("lpt", model="qwen2.5-7b", profile="h100-sxm", cost="profiled")

and have verl import it in each worker, before it trains:

  python3 -m verl.trainer.main_ppo actor_rollout_ref.model.external_lib=balance \\
    actor_rollout_ref.actor.use_dynamic_bsz=True ...      # critic.model.external_lib for a critic
"""

import math

import equipoise


def length_of(workload):
    """Tokens of a sequence that verl weighs so: n of 24576 n + n^2."""
    return round(math.sqrt(12288**2 + workload) - 12288)


def use_policy(policy="lpt", **options):
    """Replaces verl's partition function and returns the original. `options` are those of equipoise.pack."""
    from verl.utils import seqlen_balancing

    own = seqlen_balancing.get_seqlen_balanced_partitions

    def partitions(seqlen_list, k_partitions, equal_size):
        if equal_size:  # deals lengths to data-parallel ranks
            return own(seqlen_list, k_partitions, equal_size)
        lengths = [length_of(workload) for workload in seqlen_list]
        plan = equipoise.pack(lengths, policy, documents_per_step=len(lengths), micro_batches=k_partitions, **options)
        found = [sorted(document for document, _, _ in micro_batch) for micro_batch in plan.steps[0][0]]
        whole = sorted(document for part in found for document in part) == list(range(len(lengths)))
        return found if len(found) == k_partitions and all(found) and whole else own(seqlen_list, k_partitions, equal_size)

    seqlen_balancing.get_seqlen_balanced_partitions = partitions
    return own


def main():
    import torch
    from tensordict import TensorDict
    from verl.utils.seqlen_balancing import rearrange_micro_batches

    lengths = equipoise.draw_trace("llama3-sft", 64, 0).clip(1, 4096)
    mask = (torch.arange(4096)[None] < torch.from_numpy(lengths)[:, None]).long()
    batch = TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=64)

    def slowest(micro_batches):
        return max(sum(24576 * n + n * n for n in m["attention_mask"].sum(-1).tolist()) for m in micro_batches)

    theirs, _ = rearrange_micro_batches(batch, max_token_len=16384)
    use_policy("lpt", model="qwen2.5-7b", profile="h100-sxm", cost="profiled")
    ours, places = rearrange_micro_batches(batch, max_token_len=16384)
    print(f"{len(theirs)} micro-batches by verl, {len(ours)} by lpt; the heaviest by verl's measure: {slowest(theirs):.3g}, {slowest(ours):.3g}")
    assert sorted(place for part in places for place in part) == list(range(64))


if __name__ == "__main__":
    main()

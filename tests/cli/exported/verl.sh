# small: wlb, for verl (0.9.1)
# use: python3 -m verl.trainer.main_ppo "${OVERRIDES[@]}" with your data and model; actor.megatron.* with --config-name=ppo_megatron_trainer; batch sizes are of rollout.n 1
# 8 GPUs; simulated: 0.119 s per step of 54,613 tokens, 54404 tokens/s/GPU
# that includes what is not expressed (below); the flags alone: no figure is known, because even karmarkar-karp, per-document, is not what they say: parallel.context_comm all-gather: FSDP has Ulysses, Megatron a ring
# cannot be expressed: policy wlb (queues 2, max_tokens 32768): micro-batches are those of use_dynamic_bsz: largest differencing up to ppo_max_token_len_per_gpu; nearest: karmarkar-karp, which is a row of a study to compare with
# cannot be expressed: shard adaptive: FSDP's Ulysses shards nothing, Megatron cuts each document into 2 x CP chunks; nearest: per-document with Megatron
# cannot be expressed: parallel.context_comm all-gather: FSDP has Ulysses, Megatron a ring; nearest: those; override_transformer_config.cp_comm_type with Megatron
# cannot be expressed: batch.sequences_per_step 4 windows, about 8 documents: data.train_batch_size and ppo_mini_batch_size count samples, whatever their tokens; nearest: as many as a step has documents
OVERRIDES=(
  actor_rollout_ref.actor.strategy=megatron
  actor_rollout_ref.model.use_remove_padding=true
  actor_rollout_ref.actor.use_dynamic_bsz=true
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2
  actor_rollout_ref.actor.megatron.context_parallel_size=2
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2
  actor_rollout_ref.actor.megatron.use_distributed_optimizer=true
  trainer.n_gpus_per_node=8
  trainer.nnodes=1
)

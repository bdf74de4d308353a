# small: wlb, for NeMo's Megatron-Bridge (main of 2026-08-22, 067f987df)
# use: run_recipe.py --recipe YOUR_MODELS_RECIPE "${OVERRIDES[@]}"; the recipe has the model's shape
# 8 GPUs; simulated: 0.119 s per step of 54,613 tokens, 54404 tokens/s/GPU
# that includes what is not expressed (below); the flags alone: no figure is known, because your own data loader packs documents and masks them
# cannot be expressed: policy wlb (queues 2, max_tokens 32768): the dataset cuts documents into windows in data order; nearest: its micro-batches, as equipoise.loader (Python) or plan.json of `study --out` give them
# cannot be expressed: shard adaptive: packed documents are cut each into 2 x CP chunks (thd_get_partitioned_indices); nearest: per-document, by a dataset that packs (dataset.offline_packing_specs); else per-sequence, where documents see each other
# cannot be expressed: largest micro-batch 16440 tokens: a micro-batch has the length of the dataset's samples; nearest: a length of so many, for a dataset of the plan's micro-batches
# cannot be expressed: framework.gradient_bytes 2: mixed_precision by name reduces in fp32, whatever ddp says; nearest: without that override, cfg.mixed_precision = get_mixed_precision_config(NAME) with grad_reduce_in_fp32 = False, in the recipe
OVERRIDES=(
  model.tensor_model_parallel_size=2
  model.sequence_parallel=true
  model.context_parallel_size=2
  model.cp_comm_type=all_gather
  model.pipeline_model_parallel_size=2
  ddp.use_distributed_optimizer=true
  optimizer.use_distributed_optimizer=true
  ddp.overlap_grad_reduce=true
  ddp.overlap_param_gather=true
  comm_overlap.tp_comm_overlap=true
  model.cross_entropy_loss_fusion=true
  train.micro_batch_size=1
  train.global_batch_size=4
  dataset.seq_length=16384
  mixed_precision=bf16_mixed
)

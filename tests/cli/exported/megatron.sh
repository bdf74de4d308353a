# small: wlb, for Megatron-LM (main of 2026-08-22, d98e8a64dd)
# use: torchrun ... pretrain_gpt.py "${ARGUMENTS[@]}" with your data, tokenizer, optimizer and --rotary-base
# 8 GPUs; simulated: 0.119 s per step of 54,613 tokens, 54404 tokens/s/GPU
# that includes what is not expressed (below); the flags alone (plain, per-document), simulated: 0.142 s per step of 65,536 tokens, 57694 tokens/s/GPU
# cannot be expressed: policy wlb (queues 2, max_tokens 32768): the dataset cuts documents into windows in data order; nearest: its micro-batches, as equipoise.loader (Python) or plan.json of `study --out` give them
# cannot be expressed: shard adaptive: packed documents are cut each into 2 x CP chunks (thd_get_partitioned_indices); nearest: per-document, by --dataloader-inter-document-masking; without it per-sequence, where documents see each other
# cannot be expressed: largest micro-batch 16440 tokens: a micro-batch has the length of the dataset's samples; nearest: a length of so many, for a dataset of the plan's micro-batches
ARGUMENTS=(
  --tensor-model-parallel-size 2
  --sequence-parallel
  --context-parallel-size 2
  --cp-comm-type all_gather
  --pipeline-model-parallel-size 2
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  --tp-comm-overlap
  --cross-entropy-loss-fusion
  --micro-batch-size 1
  --global-batch-size 4
  --seq-length 16384
  --max-position-embeddings 32768
  --dataloader-inter-document-masking
  --bf16
  --grad-reduce-in-bf16
  --num-layers 16
  --hidden-size 1536
  --ffn-hidden-size 4096
  --num-attention-heads 12
  --kv-channels 128
  --swiglu
  --normalization RMSNorm
  --position-embedding-type rope
  --disable-bias-linear
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --untie-embeddings-and-output-weights
  --vocab-size 32000
)

#!/bin/bash
# A mixture of experts on one node.
GPUS=8
NODES=${SLURM_NNODES:-"1"}
LAUNCH=(--nproc_per_node $GPUS --nnodes $NODES)
MODEL=(
    --disable-bias-linear --swiglu --normalization RMSNorm
    --position-embedding-type rope --no-position-embedding
    --untie-embeddings-and-output-weights
    --num-layers 4 --hidden-size 512 --ffn-hidden-size 1792
    --num-attention-heads 8 --group-query-attention --num-query-groups 2
    --seq-length 1024 --max-position-embeddings 32768
    --attention-dropout 0.0 --hidden-dropout 0.0
    --no-masked-softmax-fusion
)
MOE=(
    --num-experts 8
    --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-2
#    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --overlap-param-gather
    --overlap-grad-reduce
)
LOGS=(
  #  --log-interval 1 \
    --no-load-rng
)
if [ -n "${WANDB_API_KEY}" ]; then
    LOGS+=(--wandb-project ${WANDB_PROJECT:-"experts"})
fi
torchrun ${LAUNCH[@]} pretrain_gpt.py \
    ${MODEL[@]} ${MOE[@]} ${LOGS[@]} \
    --tokenizer-type NullTokenizer --vocab-size 31999 --mock-data --split 99990,8,2 \
    --micro-batch-size 1 --global-batch-size 16 --lr 1e-4 --train-iters 100 --clip-grad 1.0 \
    --tensor-model-parallel-size 2 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1 \
    --use-distributed-optimizer --sequence-parallel --bf16

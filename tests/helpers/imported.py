"""Sources in the style of training scripts, for tests of `simtrain import`."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from simtrain.base.importer import Importer, ImportRequest
from simtrain.guests.importing.importers import (
    DeepSpeed,
    HuggingFace,
    Megatron,
    MegatronBridge,
    Torchtitan,
)
from simtrain.scenario import Scenario

BASE = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --bf16"
)

EXPERTS = "--disable-bias-linear --world-size 4 --num-experts 8"

GPT = """\
#!/bin/bash
# A GPT on two nodes.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${NNODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
CHECKPOINTS=$1 #<path>

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --master_port 6000"

MODEL_ARGS="
    --num-layers 48 \\
    --hidden-size 6144 \\
    --num-attention-heads 64 \\
    --seq-length 2048 \\
    --max-position-embeddings 2048
"

python -m torch.distributed.launch $DISTRIBUTED_ARGS pretrain_gpt.py \\
    $MODEL_ARGS \\
    --tensor-model-parallel-size 4 \\
    --pipeline-model-parallel-size 2 \\
    --sequence-parallel \\
    --micro-batch-size 2 --global-batch-size 64 \\
    --fp16 --accumulate-allreduce-grads-in-fp32 \\
    --recompute-granularity full --recompute-method block --recompute-num-layers 3 \\
    --attention-backend unfused \\
    --lr 1.0e-4 --train-iters 100 \\
    --save $CHECKPOINTS >& log.txt
"""
LLAMA = """\
#!/bin/bash
OUT=${1:-"checkpoints"}
TOKENIZER=${2:-"MOCK"} # a file, or MOCK
PRECISION="fp8"
TP=2
LAUNCH=(
    --nproc_per_node 8   # GPUs
    --nnodes 1
)
MODEL=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 131072
    --position-embedding-type rope
    --rotary-base 500000
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    # --qk-layernorm
)
PRECISION_ARGS=()
if [[ "$PRECISION" == "fp8" ]]; then
    PRECISION_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
    )
elif [ "$PRECISION" = bf16 ]; then
    PRECISION_ARGS+=(--deterministic-mode)
fi
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    DATA=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128255" "--split '99,1,0'")
else
    DATA=("--tokenizer-model $TOKENIZER")
fi
if [ ! -f pretrain_gpt.py ]; then
    echo "start this in the folder of Megatron-LM"
    exit 1
fi
torchrun ${LAUNCH[@]} pretrain_gpt.py \\
    ${MODEL[@]} ${PRECISION_ARGS[@]} ${DATA[@]} \\
    --tensor-model-parallel-size $TP --sequence-parallel \\
    --micro-batch-size 1 --global-batch-size 128 \\
    --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \\
    --recompute-activations --save "$OUT" 2>&1 | tee log.txt

set +x
"""


def draft_with(
    importer: Importer, source: str, overrides: Sequence[str] = (), **options: Any
) -> Any:
    """Return the draft of a source; options are the other fields of an `ImportRequest`."""
    return importer.draft(ImportRequest(source, overrides=overrides, **options))


def import_with(
    importer: Importer, source: str, overrides: Sequence[str] = (), **options: Any
) -> tuple[Scenario, str]:
    """Return the scenario of a source, and the text of its file."""
    draft: Any = draft_with(importer, source, overrides, **options)
    return draft.finished()


import_megatron = partial(import_with, Megatron())
import_torchtitan = partial(import_with, Torchtitan())
import_hugging_face = partial(import_with, HuggingFace())
import_deepspeed = partial(import_with, DeepSpeed())
bridge_draft = partial(draft_with, MegatronBridge())


def text_of(source: str, *overrides: str) -> str:
    """Return the text of the written file."""
    return import_megatron(source, overrides)[1]


def written(name: str, text: str) -> str:
    """Write a file with this text and return its name."""
    Path(name).write_text(text, encoding="utf-8")
    return name


_INSERTED = (
    *"$\"'*[]()`|={}:,.\\\n\t 9x",
    *("--", "$X", "-1", "1e9", "9" * 30, "$(x)", "True", "M-*", "(" * 300, "[" * 300),
    " --tensor-model-parallel-size 0 ",
)


def mutated(text: str, draw: random.Random) -> str:
    """Return a text with one to four pieces removed, inserted, repeated or replaced."""
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.randint(1, 40))
        repeated = text[start:end] * draw.choice((2, 100))
        piece = draw.choice(("", draw.choice(_INSERTED), repeated))
        text = text[:start] + piece + text[draw.choice((start, end)) :]
    return text

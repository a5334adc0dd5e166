"""Write a scenario as a script that starts Megatron-DeepSpeed, with the JSON in it."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from simtrain.base.importer import ImportRequest
from simtrain.errors import InputError
from simtrain.importing.deepspeed.config_and_model import deepspeed_draft
from simtrain.importing.lost_fields import (
    comments_of,
    lost_fields,
    refuse_adapters,
    refuse_splits,
)
from simtrain.importing.megatron.export import shared_arguments
from simtrain.scenario import Scenario

_TO_RUN = "--tokenizer-type NullTokenizer --data-path data --train-iters 20 --lr 1.0e-4"
"""What pretrain_gpt.py needs besides, without effect on an iteration: to be replaced."""
_RANKS_PER_NODE = 8
_FILE = "ds_config.json"
_OTHER_WORDS = {
    "--group-query-attention --num-query-groups": "--num-key-value-heads",
    "--normalization RMSNorm": "--normalization rmsnorm",
    "--normalization LayerNorm": "--normalization layernorm",
    "--position-embedding-type rope": "--use-rotary-position-embeddings",
    "--position-embedding-type learned_absolute": "",
    "--attention-backend": "",
    "--recompute-modules core_attn": "",
}
"""The beginnings of Megatron-LM's arguments that Megatron-DeepSpeed writes otherwise."""


def deepspeed_script(scenario: Scenario, *, nearest: bool = False) -> str:
    """Return a script of bash with the JSON, the arguments, and comments on what they cannot say.

    Args:
        scenario: the scenario.
        nearest: whether to write one chunk per stage, of equal stages, and 1F1B if the scenario has
            others. The comments name what changes.

    Raises:
        InputError: Megatron-DeepSpeed cannot run the scenario (E882).
    """
    refuse_adapters(scenario, "Megatron-DeepSpeed")
    refuse_splits(scenario, "Megatron-DeepSpeed")
    layout = _nearest(scenario) if nearest else scenario
    _refuse_others(layout)
    script = _script(layout, [])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.sh"
        file.write_text(script, "utf-8")
        request = ImportRequest(file, overrides=[f"cluster={scenario.cluster}"])
        again, _ = deepspeed_draft(request).finished()
    return _script(layout, comments_of(lost_fields(scenario, again), "DeepSpeed"))


def _nearest(scenario: Scenario) -> Scenario:
    """Return a scenario with the only schedule and the only stages that DeepSpeed has."""
    split = scenario.parallelism
    changes: dict[str, Any] = {}
    if split.interleave > 1:
        changes |= {"parallelism.interleave": 1, "overlap.pipeline": False}
    if scenario.model.num_layers % split.pipeline == 0:
        ends = ("layout", "first_stage_layers", "last_stage_layers")
        changes |= {f"parallelism.{end}": None for end in ends if getattr(split, end)}
    if scenario.schedule != "1f1b":
        changes["schedule"] = "1f1b"
    return scenario.replace(changes) if changes else scenario


def _script(scenario: Scenario, comments: list[str]) -> str:
    ranks = math.gcd(scenario.num_gpus, _RANKS_PER_NODE)
    launch = f"deepspeed --num_gpus {ranks} --num_nodes {scenario.num_gpus // ranks}"
    name = f" of {scenario.name}" if scenario.name else ""
    return "\n".join(
        [
            "#!/bin/bash",
            f"# DeepSpeed's config and arguments{name}, with data of no meaning: replace the last",
            "# line.",
            *comments,
            f"cat <<'EOF' > {_FILE}",
            json.dumps(_config(scenario), indent=2),
            "EOF",
            " \\\n  ".join([f"{launch} pretrain_gpt.py", *_arguments(scenario), _TO_RUN]),
            "",
        ]
    )


def _arguments(scenario: Scenario) -> list[str]:
    arguments = [_renamed(argument) for argument in shared_arguments(scenario)]
    compute, facts = scenario.precision.compute, scenario.facts
    return [
        *filter(None, arguments),
        *([f"--{compute}"] if compute in ("fp16", "bf16") else []),
        *(["--use-flash-attn-v2"] if scenario.attention_backend == "fused" else []),
        *(["--no-masked-softmax-fusion"] if not facts.kernels.fused_softmax else []),
        *(["--no-pipeline-parallel"] if scenario.parallelism.pipeline == 1 else []),
        f"--deepspeed --deepspeed_config {_FILE} --zero-stage {scenario.memory.zero_stage}",
    ]


def _renamed(argument: str) -> str:
    for theirs, ours in _OTHER_WORDS.items():
        if argument.startswith(theirs):
            return (ours + argument.removeprefix(theirs)) if ours else ""
    return argument


def _pipelined(device: str) -> dict[str, Any]:
    """Return the keys with which DeepSpeed reads and writes NVMe while Adam runs."""
    flags = {"pipeline_read": True, "pipeline_write": True}
    return {"nvme_path": "/local_nvme"} | flags if device == "nvme" else {}


def _config(scenario: Scenario) -> dict[str, Any]:
    memory, batch, precision = scenario.memory, scenario.batch, scenario.precision
    # Without replicas, nothing is sharded, but states are offloaded in stages 2 and 3 only.
    least = 3 if memory.offload_parameters else 2 if memory.offload_gradients else 0
    zero: dict[str, Any] = {"stage": max(memory.zero_stage, least)}
    if memory.zero_stage:
        zero["overlap_comm"] = scenario.overlaps_data_parallel
    if memory.offload_optimizer:
        device = "nvme" if memory.optimizer_on_nvme else "cpu"
        zero["offload_optimizer"] = {"device": device} | _pipelined(device)
    if memory.offload_parameters:
        zero["offload_param"] = {"device": "nvme" if memory.parameters_on_nvme else "cpu"}
    if memory.nvme != "none":
        zero["sub_group_size"] = memory.sub_group_size
    if memory.zero_stage == 3:
        if memory.shard_over:
            zero["mics_shard_size"] = memory.shard_over
        if memory.reshard_after_forward is not True and memory.reshard_after_forward:
            zero["zero_hpz_partition_size"] = memory.reshard_after_forward
    config: dict[str, Any] = {
        "train_batch_size": batch.global_,
        "train_micro_batch_size_per_gpu": batch.micro,
        "zero_optimization": zero,
        "data_types": {"grad_accum_dtype": scenario.gradient_type},
    }
    if precision.compute in ("fp16", "bf16"):
        config[precision.compute] = {"enabled": True}
    return config


def _refuse_others(scenario: Scenario) -> None:
    model, split = scenario.model, scenario.parallelism
    reasons = {
        "experts": model.experts,
        "a pattern of layers": model.layer_pattern,
        "latent attention": model.latent_attention,
        "multi-token prediction": model.mtp_num_layers,
        "attention windows": model.attention_window,
        "context parallelism": split.context > 1,
        "several chunks per stage": split.interleave > 1,
        "stages of other lengths": split.layout
        or split.first_stage_layers
        or split.last_stage_layers,
        "fp8 or fp4": scenario.precision.casts,
        f"the schedule {scenario.schedule}": scenario.schedule != "1f1b",
    }
    if what := next((what for what, has in reasons.items() if has), None):
        raise InputError.of(
            "E882",
            f"the scenario has {what}, which simtrain cannot write for Megatron-DeepSpeed",
            fix="export it for another framework: simtrain export --to megatron",
        )

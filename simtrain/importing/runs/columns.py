"""Columns of tables of measured runs: the names that people give them, and how their cells read.

A cell without text was not printed. A remark in parentheses after a value is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simtrain.schedules.interleaved import Interleaved
from simtrain.schedules.registry import NAMED
from simtrain.schedules.vocabulary import SPLITS
from simtrain.schedules.zb_h1 import ZbH1
from simtrain.schedules.zb_h2 import ZbH2
from simtrain.schedules.zbv import Zbv
from simtrain.studies.validation.measured import PeakOf

Fields = dict[str, Any]
"""Values by the fields of a scenario."""


class UnreadableCell(Exception):
    """A cell has no value of its column; the message says what it must be."""


def integer(text: str) -> int:
    """Read a whole number from 1: "64", "8,192", "8.0"."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        raise UnreadableCell("must be a whole number from 1") from None
    if not (math.isfinite(number) and number >= 1 and number == int(number)):
        raise UnreadableCell("must be a whole number from 1")
    return int(number)


def positive(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        raise UnreadableCell("must be a number above 0") from None
    if not (math.isfinite(number) and number > 0):
        raise UnreadableCell("must be a number above 0")
    return number


_SWITCHES = {"true": True, "yes": True, "on": True, "1": True} | dict.fromkeys(
    ("false", "no", "off", "0"), False
)


def switch(text: str) -> bool:
    """Read true or false."""
    if text.lower() not in _SWITCHES:
        raise UnreadableCell("must be true or false")
    return _SWITCHES[text.lower()]


@dataclass(frozen=True, slots=True)
class RunColumn:
    """A column that sets fields of the scenario.

    Args:
        names: its names, spelled as `spelled` does.
        fields: returns the fields that a cell sets; raises `UnreadableCell`.
        is_switch: whether `notes` may have it, as in "ub_tp_comm_overlap on".
        reads_remark: whether it reads a remark in parentheses too.
    """

    names: tuple[str, ...]
    fields: Callable[[str], Fields]
    is_switch: bool = False
    reads_remark: bool = False


def _of(field: str, read: Callable[[str], Any]) -> Callable[[str], Fields]:
    return lambda text: {field: read(text)}


def _choice(field: str, values: Mapping[str, Any]) -> Callable[[str], Fields]:
    """Return the reader of a column with these words."""

    def fields(text: str) -> Fields:
        """Return the field with the value of a word."""
        if text.lower() not in values:
            raise UnreadableCell(f"must be one of {', '.join(values)}")
        return {field: values[text.lower()]}

    return fields


def _data_type(text: str) -> Fields:
    if text.lower() == "mxfp8":
        return {"precision.compute": "fp8", "precision.fp8_recipe": "mxfp8"}
    names = "bf16", "fp16", "fp32", "fp8", "fp4"
    return _choice("precision.compute", {name: name for name in names} | {"nvfp4": "fp4"})(text)


_ZERO = re.compile(
    r"(?P<stage>[0-3]|none)(?: over all DP ranks| within groups of (?P<group>\d{1,9}))?"
)
_NOT_STAGE = "must be a stage from 0 to 3, such as 1 or 1 within groups of 8"


def _sharding(text: str) -> Fields:
    """Read a ZeRO stage, and what its remark says about overlap.

    Remarks: "1 (overlap grad reduce)", "3 (FSDP2)".
    """
    value, _, remark = text.partition("(")
    match = _ZERO.fullmatch(value.strip())
    if match is None:
        raise UnreadableCell(_NOT_STAGE)
    stage = match["stage"]
    fields: Fields = {"memory.zero_stage": 0 if stage == "none" else int(stage)}
    if match["group"]:
        fields["memory.shard_over"] = int(match["group"])
    # FSDP always gathers and reduces beside other layers' products.
    if "overlap grad reduce" in remark or "FSDP" in remark:
        fields["overlap.data_parallel"] = True
    if "overlap" in remark and "param gather" in remark:
        fields["overlap.parameter_gather"] = True
    return fields


def _distributed_optimizer(text: str) -> Fields:
    return {"memory.zero_stage": int(switch(text))}


_PAPERS = {"1f1b-i": Interleaved.name, "zb-1p": ZbH1.name, "zb-2p": ZbH2.name, "zb-v": Zbv.name}
_SCHEDULES = (
    {name.replace("_", "-"): name for name in NAMED} | {name: name for name in NAMED} | _PAPERS
)
"""Schedules by their names in tables, in lower case. Automatic ones of Qi et al. 2023 stand for
the handcrafted ones with their memory.
"""
NOT_PRINTED = re.compile(r"not printed|recipe default", re.IGNORECASE)
"""Cells that say that their value is not known."""
_VOCABULARIES = {"baseline": "first_last", "first_last": "first_last"} | {
    spelling: name for name in SPLITS for spelling in (name, name.replace("_", "-"))
}
"""Where the vocabulary is, by the names of Yeung et al. 2024."""
_RECOMPUTES = {"none": "none", "full": "full", "selective": "selective", "selective-op": "ops"}

RUN_COLUMNS = (
    RunColumn(("layers", "num_layers", "n_layers"), _of("model.num_layers", integer)),
    RunColumn(("hidden", "hidden_size", "d_model"), _of("model.hidden_size", integer)),
    RunColumn(
        ("heads", "attention_heads", "num_attention_heads"),
        _of("model.num_attention_heads", integer),
    ),
    RunColumn(
        ("kv_heads", "query_groups", "num_query_groups"), _of("model.num_query_groups", integer)
    ),
    RunColumn(("ffn_hidden", "ffn_hidden_size"), _of("model.ffn_hidden_size", integer)),
    RunColumn(("vocab", "vocab_size", "padded_vocab_size"), _of("model.vocab_size", integer)),
    RunColumn(("seq", "seq_length", "sequence_length"), _of("model.seq_length", integer)),
    RunColumn(
        ("tp", "tensor_parallel", "tensor_parallelism", "tensor_model_parallel_size"),
        _of("parallelism.tensor", integer),
    ),
    RunColumn(
        ("sp", "sequence_parallel"), _of("parallelism.sequence_parallel", switch), is_switch=True
    ),
    RunColumn(
        ("cp", "context_parallel", "context_parallel_size"), _of("parallelism.context", integer)
    ),
    RunColumn(
        ("pp", "pipeline_parallel", "pipeline_parallelism", "pipeline_model_parallel_size"),
        _of("parallelism.pipeline", integer),
    ),
    RunColumn(
        ("vpp", "virtual_stages", "virtual_pipeline_model_parallel_size"),
        _of("parallelism.interleave", integer),
    ),
    RunColumn(
        ("ep", "expert_parallel", "expert_model_parallel_size"), _of("parallelism.expert", integer)
    ),
    RunColumn(("etp", "expert_tensor_parallel_size"), _of("parallelism.expert_tensor", integer)),
    RunColumn(
        ("dp", "data_parallel", "data_parallelism", "data_parallel_size"),
        _of("parallelism.data", integer),
    ),
    RunColumn(("micro_batch", "micro_batch_size", "mbs"), _of("batch.micro", integer)),
    RunColumn(("global_batch", "global_batch_size", "gbs"), _of("batch.global", integer)),
    RunColumn(
        ("zero_or_fsdp_stage", "zero_stage", "sharding"),
        _sharding,
        reads_remark=True,
    ),
    RunColumn(
        ("distributed_optimizer", "use_distributed_optimizer"),
        _distributed_optimizer,
        is_switch=True,
    ),
    RunColumn(
        ("recompute", "recompute_granularity", "activation_checkpointing"),
        _choice("recompute.strategy", _RECOMPUTES),
    ),
    RunColumn(
        ("flash_attention", "use_flash_attn"),
        lambda text: {"attention_backend": "fused" if switch(text) else "unfused"},
        is_switch=True,
    ),
    RunColumn(("dtype", "precision", "data_type"), _data_type),
    RunColumn(
        ("ub_tp_comm_overlap", "tp_comm_overlap", "userbuffers"),
        _of("overlap.userbuffers", switch),
        is_switch=True,
    ),
    RunColumn(("overlap_grad_reduce",), _of("overlap.data_parallel", switch), is_switch=True),
    RunColumn(("overlap_param_gather",), _of("overlap.parameter_gather", switch), is_switch=True),
    RunColumn(("software_stack", "stack"), _of("software.stack", str)),
    RunColumn(("schedule", "base_schedule"), _choice("schedule", _SCHEDULES)),
    RunColumn(
        ("vocabulary", "vocabulary_parallelism", "method"),
        _choice("parallelism.vocabulary", _VOCABULARIES),
    ),
)
"""Columns that set fields. A column may also have the name of a field: `model.num_layers`."""
COLUMN_OF = {name: column for column in RUN_COLUMNS for name in column.names}


@dataclass(frozen=True, slots=True)
class Remark:
    """Words of notes that say what a run had.

    Args:
        pattern: the words.
        fields: the fields that they set, unless a column does.
        refusal: why such a run cannot be simulated; "" if it can.
        needs: a field that must be above 1 for the words to have an effect.
    """

    pattern: re.Pattern[str]
    fields: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""
    needs: str = ""


REMARKS = (
    # As the importer of torchtitan's jobs has it: chunks and buffers are those of userbuffers.
    Remark(
        re.compile(r"\basync ?tp\b", re.IGNORECASE),
        {"overlap.tensor_parallel": True, "overlap.userbuffers": True},
        needs="parallelism.tensor",
    ),
    Remark(re.compile(r"\bfp8 tensorwise\b"), {"precision.fp8_recipe": "tensorwise"}),
    Remark(re.compile(r"\browwise\b"), refusal="fp8 with a scale for each row is not simulated"),
    Remark(re.compile(r"\bmuon\b", re.IGNORECASE), refusal="the optimizer Muon is not simulated"),
    # Megatron-Bridge's apply_moe_token_drop: a capacity factor of 1 and padded inputs.
    Remark(
        re.compile(r"\btokens? dropped\b|\btoken ?drop\b", re.IGNORECASE),
        {"model.experts.capacity_factor": 1.0},
    ),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A column with a measured figure.

    Args:
        names: its names.
        factor: from its unit to seconds or bytes.
        of: of a peak, what it is the peak of.
    """

    names: tuple[str, ...]
    factor: float = 1.0
    of: PeakOf = PeakOf.GPU


TIMES = (
    Measurement(("iteration_time_s", "iteration_s", "step_time_s", "iteration_s_median")),
    Measurement(
        ("iteration_time_ms", "iteration_ms", "step_time_ms", "elapsed_time_per_iteration_ms"), 1e-3
    ),
    Measurement(("iteration_s_derived",)),
)
"""Columns of iteration times, the first with a value counts."""
PEAKS = (
    Measurement(("peak_bytes",)),
    Measurement(("mem_max_allocated_bytes",), of=PeakOf.LAST_STAGE),  # Megatron-LM's scalar
    Measurement(("max_allocated_bytes", "max_memory_allocated"), of=PeakOf.TENSORS),
    Measurement(("peak_mem_gb", "peak_memory_gb"), 1e9),
    Measurement(("peak_mem_gib", "peak_memory_gib"), 2.0**30),
)
"""Columns of peaks of memory, the first with a value counts."""
TOKENS_PER_S_PER_GPU = ("tokens_per_s_per_gpu", "tokens_per_gpu_per_s")
NAMES = ("id", "name", "case", "run")
MODELS = ("model_name", "model")
PARAMETERS = ("params_b", "parameters_b", "params_billion", "parameters_billion")
"""Billions of parameters: a check of what is simulated."""
GPUS = ("gpus", "num_gpus", "world_size")
HARDWARE = ("hardware", "gpu", "cluster")
OUTCOMES = ("outcome", "status")
NOTES = ("notes", "note", "remark", "flag")
SOURCES = ("source", "task")
FRAMEWORKS = ("framework", "software", "group")
RELEASES = ("release", "software_version", "framework_version")
"""Columns of the release of the framework."""
GATED = ("gated_mlp", "swiglu")
MICROBATCHES = ("microbatches", "num_microbatches")
ARGUMENTS = ("args_json",)
MEASURED = frozenset(
    name
    for names in (OUTCOMES, TOKENS_PER_S_PER_GPU, *(kind.names for kind in (*TIMES, *PEAKS)))
    for name in names
)
"""Columns of what was measured."""
OUT_OF_MEMORY = frozenset({"oom", "out of memory", "out_of_memory", "does_not_fit"})
OTHERS = frozenset(
    name
    for names in (
        *(
            NAMES,
            MODELS,
            PARAMETERS,
            GPUS,
            HARDWARE,
            OUTCOMES,
            NOTES,
            SOURCES,
            FRAMEWORKS,
            RELEASES,
            GATED,
            MICROBATCHES,
            ARGUMENTS,
        ),
        *(TOKENS_PER_S_PER_GPU, *(kind.names for kind in (*TIMES, *PEAKS))),
    )
    for name in names
)
"""Columns that are read but set no field by themselves."""
KNOWN = OTHERS | COLUMN_OF.keys()
"""All columns that are read, besides fields of a scenario by their names."""


def spelled(heading: str) -> str:
    """Return a heading as the names of columns are spelled: "# GPUs" is gpus."""
    if "." in heading and " " not in heading.strip():
        return heading.strip()
    return re.sub(r"[^a-z0-9]+", "_", heading.lower()).strip("_")


def without_remark(text: str) -> str:
    """Return a cell without a remark in parentheses at its end."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", text).strip()

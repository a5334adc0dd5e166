"""Import Megatron-LM's arguments of parallelism, pipeline stages and the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from simtrain.errors import Problem
from simtrain.importing.draft import DEFAULT
from simtrain.importing.megatron.arguments import MAPPED
from simtrain.importing.megatron.draft import MegatronDraft, converted, listed, wrong
from simtrain.importing.megatron.hybrid import set_pattern_stages
from simtrain.importing.megatron.source import unknown_value
from simtrain.importing.settings import Setting
from simtrain.scenario.pipeline_layout import chunks_of_layout, layout_of_chunks

_NOT_WITH_LAYOUT = (
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
)


def set_parallelism(draft: MegatronDraft) -> None:
    """Set the parallelism inside a replica."""
    draft.set("parallelism.tensor", draft.tensor, "tensor_model_parallel_size")
    sequence = draft.flag("sequence_parallel")
    if sequence and draft.tensor == 1:
        comment = "Megatron-LM ignores --sequence-parallel without tensor parallelism"
        draft.set_because("parallelism.sequence_parallel", False, comment)
    else:
        draft.set("parallelism.sequence_parallel", sequence, "sequence_parallel")
    draft.set("parallelism.pipeline", draft.pipeline, "pipeline_model_parallel_size")
    if draft.context > 1:
        _set_context(draft)
    # Since 2023, every rank sends the whole output (p2p_communication.py); only logs of older
    # versions print this argument as on.
    name = "scatter_gather_tensors_in_pipeline"
    scatters = draft.is_printed and draft.flag(name) and not sequence
    comment = draft.origin(name, otherwise="default since 2023")
    draft.set_because("parallelism.scatter_gather", scatters, comment)
    if draft.flag("use_tp_pp_dp_mapping"):
        draft.set("placement.order", "tp-cp-ep-pp-dp", "use_tp_pp_dp_mapping")


def _set_context(draft: MegatronDraft) -> None:
    """Set context parallelism; Megatron-LM can choose the communication for each layer."""
    draft.set("parallelism.context", draft.context, "context_parallel_size")
    way = draft.known("cp_comm_type")
    names = {*listed(way)} if way else {"p2p"}
    values = MAPPED["cp_comm_type"].values
    if way and (len(names) > 1 or not names <= values.keys()):
        one_of = ", ".join(values)
        raise wrong(way, f"must be one of {one_of}, and the same for all layers")
    (communication,) = (values[name] for name in names)
    draft.set("parallelism.context_communication", communication, "cp_comm_type")
    sizes = "hierarchical_context_parallel_sizes"
    if communication == "a2a+p2p" and (setting := draft.known(sizes)):
        neighbours, *_ = [*listed(setting), ""]
        if not neighbours.isdecimal():
            raise wrong(setting, "must be a list of sizes")
        draft.set("parallelism.context_a2a", int(neighbours), sizes)


def set_stages(draft: MegatronDraft) -> None:
    """Set chunks and their layers, and the layers of the first and last stage."""
    if layout := draft.known("pipeline_model_parallel_layout"):
        _set_layout(draft, layout)
        return
    if draft.pattern is not None and len(draft.pattern.stages) > 1:
        set_pattern_stages(draft, draft.pattern)
        _set_groups(draft)
        return
    chunks = _set_chunks(draft)
    ends = {
        "first": ("decoder_first_pipeline_num_layers", "account_for_embedding_in_pipeline_split"),
        "last": ("decoder_last_pipeline_num_layers", "account_for_loss_in_pipeline_split"),
    }
    accounted = {end: draft.flag(account) for end, (_, account) in ends.items()}
    slots = (draft.layers or 0) + sum(accounted.values())
    if chunks > 1 and any(accounted.values()) and slots % (draft.pipeline * chunks) == 0:
        _set_accounted(draft, slots // (draft.pipeline * chunks), chunks, accounted)
        return
    for end, (argument, account) in ends.items():
        field = f"parallelism.{end}_stage_layers"
        if layers := draft.integer(argument):
            draft.set(field, layers, argument)
        elif accounted[end] and chunks > 1:
            draft.note(draft.settings[account], "one chunk of the stage has one layer less")
        elif accounted[end] and draft.pipeline > 1:
            share, rest = divmod(slots, draft.pipeline)
            if rest:
                says = f"leaves {slots} layers, with embedding and loss, for {draft.pipeline}"
                raise wrong(draft.settings[account], f"{says} stages: not a multiple")
            draft.set(field, share - 1, account)


def _set_accounted(
    draft: MegatronDraft, slots: int, chunks: int, accounted: Mapping[str, bool]
) -> None:
    """Set the layout of chunks of equal length, of which embedding and loss take one layer each."""
    letters = ["t" * slots for _ in range(draft.pipeline * chunks)]
    letters[0] = f"E{letters[0][accounted['first'] :]}"
    predictions = "m" * (draft.integer("mtp_num_layers") or 0)
    letters[-1] = f"{letters[-1][accounted['last'] :]}{predictions}L"
    names = (f"account_for_{part}_in_pipeline_split" for part in ("embedding", "loss"))
    draft.set("parallelism.layout", layout_of_chunks(letters), *names)


def _set_layout(draft: MegatronDraft, layout: Setting) -> None:
    """Set the layout and its number of chunks; Megatron-LM refuses other settings with it."""
    for name in _NOT_WITH_LAYOUT:
        # Logs print flags that are off.
        if (other := draft.given(name)) and other.value != "False":
            raise wrong(other, f"cannot be set together with {layout.spelled}")
    try:
        chunks = len(chunks_of_layout(layout.value))
    except ValueError as error:
        raise wrong(layout, f"must be a layout: {error}") from None
    draft.set("parallelism.layout", layout.value, layout.name)
    if chunks >= 2 * draft.pipeline:
        draft.set("parallelism.interleave", chunks // draft.pipeline, layout.name)
        _set_groups(draft)


def _set_chunks(draft: MegatronDraft) -> int:
    """Set the chunks per rank; return their number."""
    names = (
        "num_layers_per_virtual_pipeline_stage",
        "num_virtual_stages_per_pipeline_rank",
        "virtual_pipeline_model_parallel_size",
    )
    per_chunk, per_rank, printed = map(draft.integer, names)
    chunks = per_rank or printed or 1
    if per_chunk and draft.layers and not (per_rank or printed):
        chunks, rest = divmod(draft.layers, draft.pipeline * per_chunk)
        if rest or not chunks:
            says = f"does not divide {draft.layers} layers into equal chunks"
            raise wrong(draft.settings[names[0]], says)
    if chunks > 1:
        draft.set("parallelism.interleave", chunks, *names)
        _set_groups(draft)
    return chunks


def _set_groups(draft: MegatronDraft) -> None:
    """Set the microbatches of a group, unless they are as many as stages."""
    name = "microbatch_group_size_per_vp_stage"
    size = draft.integer(name)
    if size and size != draft.pipeline:
        draft.set("parallelism.microbatch_group_size", size, name)


def set_replicas(draft: MegatronDraft) -> None:
    """Set the data-parallel replicas, from the number of GPUs."""
    if data := draft.override("parallelism.data"):
        draft.set_because("parallelism.data", data, "--set")
        return
    world, names = _world(draft)
    if world is None:
        data = draft.integer("data_parallel_size") or 1
        draft.set("parallelism.data", data, "data_parallel_size", otherwise=DEFAULT)
        return
    ranks = draft.tensor * draft.pipeline * draft.context
    place = next((setting.place for setting in draft.launch), draft.place("world_size"))
    if world % ranks:
        problem = Problem(
            "E872",
            f"{world} GPUs ({names}) are not a multiple of tensor x pipeline x context "
            f"parallelism, {draft.tensor} x {draft.pipeline} x {draft.context} = {ranks}",
            place,
            f"each replica of the model has {ranks} ranks",
            f"add --gpus {ranks}, or another multiple of {ranks}",
        )
        draft.report("launch", problem)
    comment = f"{names}: {world} GPUs / {ranks} per replica"
    draft.set_because("parallelism.data", world // ranks, comment, place)


def _world(draft: MegatronDraft) -> tuple[int | None, str]:
    """Return the number of GPUs, if the source has it, and the arguments that set it."""
    if world := draft.integer("world_size"):
        return world, draft.origin("world_size")
    effect = "it decides the number of GPUs"
    for setting in draft.launch:
        unknown, message = setting.unknown, f"{setting.spelled} is {setting.unknown}"
        if unknown and unknown.startswith("$"):
            problem = unknown_value(message, setting, setting.place, "--gpus N", effect)
            draft.report(setting.name, problem)
        elif unknown:
            message, fix = f"{message}, not a number", "add --gpus N"
            draft.report(setting.name, Problem("E872", message, setting.place, effect, fix))
    if not draft.launch or any(setting.unknown for setting in draft.launch):
        return None, ""
    counts = [converted(setting, int, "an integer") for setting in draft.launch]
    return math.prod(counts), " x ".join(setting.spelled for setting in draft.launch)


def set_batch(draft: MegatronDraft) -> None:
    """Set the sizes of a microbatch and of the global batch."""
    micro = draft.override("batch.micro") or draft.integer("micro_batch_size") or 1
    draft.set("batch.micro", micro, "micro_batch_size", otherwise=DEFAULT)
    schedule = draft.known("step_batch_size_schedule")
    if total := draft.integer("global_batch_size"):
        draft.set("batch.global", total, "global_batch_size")
    elif schedule:
        draft.set("batch.global", _largest_batch(schedule), schedule.name, detail="the largest")
    else:
        total = micro * draft.data["parallelism"]["data"]
        draft.set_because("batch.global", total, f"{DEFAULT}; micro x data, as Megatron-LM")
    if schedule and len(listed(schedule)) > 1:
        draft.note(schedule, "the first iterations have smaller batches")


def _largest_batch(schedule: Setting) -> int:
    """Return the largest batch of a schedule such as 0:768 250B:1536: thresholds and batches."""
    sizes = [step.rpartition(":")[2] for step in listed(schedule)]
    if not sizes or not all(size.isdecimal() and len(size) < 10 for size in sizes):
        raise wrong(schedule, "must be a list of thresholds and batches, such as 0:768 250B:1536")
    return max(map(int, sizes))

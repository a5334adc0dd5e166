"""Import Megatron-LM's arguments of communication that overlaps with compute."""

from __future__ import annotations

from simtrain.importing.megatron.arguments import USERBUFFERS
from simtrain.importing.megatron.draft import MegatronDraft
from simtrain.importing.megatron.memory import zero_stage
from simtrain.scenario.software import load_stack

_MERGED = "overlap_moe_expert_parallel_comm"
_DEFERRED = "defer_embedding_wgrad_compute"


def set_overlap(draft: MegatronDraft) -> None:
    """Set the overlap of pipeline transfers, tensor-parallel and data-parallel collectives.

    Overlapped transfers and alignment are defaults of Megatron-LM, and so of its software stack for
    each layout. A field is set only if an argument turns off what the layout would have; a log also
    prints arguments that validate_args turned off for a layout that cannot have them.
    """
    interleaves = "interleave" in draft.data["parallelism"]
    if interleaves:
        draft.copy("overlap_p2p_comm")
    if draft.flag("tp_comm_overlap"):
        _set_userbuffers(draft)
    if draft.flag(_MERGED):
        _set_merged_passes(draft)
    if draft.flag(_DEFERRED) and draft.pipeline > 1:
        _set_deferred_gradients(draft)
    _set_data_parallel(draft, interleaves)


def _set_userbuffers(draft: MegatronDraft) -> None:
    """Set userbuffers, and note their arguments that are not modelled."""
    if text := _unmodelled_userbuffers(draft):
        draft.note(draft.settings["tp_comm_overlap"], text)
        return
    draft.copy("tp_comm_overlap")
    draft.note_effects(USERBUFFERS)


def _set_merged_passes(draft: MegatronDraft) -> None:
    """Set merged passes, or note them with sharded gradients or full recompute."""
    is_sharded = draft.data["memory"]["zero_stage"] > 1
    if is_sharded or draft.data["recompute"]["strategy"] == "full":
        text = "all-to-alls overlap with another microbatch: faster, but more memory"
        draft.note(draft.settings[_MERGED], text)
        return
    draft.copy(_MERGED, "delay_wgrad_compute")


def _set_deferred_gradients(draft: MegatronDraft) -> None:
    """Set deferred weight gradients of the output layer, of all microbatches without a limit.

    They are noted where the scenario cannot have them (E400).
    """
    data = draft.data
    is_merged = data.get("overlap", {}).get("merged_passes", False)
    has_others = draft.given("peft_dim") or is_merged or "mtp_num_layers" in data["model"]
    copies = data.get("offload", {}).get("unit", "none") != "none"
    if data["memory"]["zero_stage"] > 1 or has_others or copies:
        text = "weight gradients of the output layer run in bubbles of the last stage"
        draft.note(draft.settings[_DEFERRED], text)
        return
    batch, replicas = data["batch"], data["parallelism"]["data"]
    number = draft.integer("wgrad_deferral_limit") or batch["global"] // batch["micro"] // replicas
    draft.set("overlap.deferred_output_gradients", number, _DEFERRED, "wgrad_deferral_limit")


def _unmodelled_userbuffers(draft: MegatronDraft) -> str:
    """Return why the userbuffers of a source are not modelled; "" if they are."""
    model, precision = draft.data["model"], draft.data["precision"]
    if draft.is_local:
        return "no effect with --transformer-impl local"
    if "latent_attention" in model or "mtp_num_layers" in model:
        return "pipelines some products with their collectives: faster"
    is_fp4 = precision["compute"] == "fp4"
    if is_fp4 or precision.get("fp8_recipe", "delayed") not in ("delayed", "tensorwise"):
        return "pipelines products of this recipe with their collectives: faster"
    return ""


def _set_data_parallel(draft: MegatronDraft, interleaves: bool) -> None:
    """Set the overlap of gradient reduction and parameter gather with compute.

    Buckets are set only if they have an effect: Megatron-LM ignores them without
    --overlap-grad-reduce. Megatron-FSDP and PyTorch's FSDP2
    always overlap the collectives of sharded gradients and parameters.
    """
    stage = draft.data["memory"]["zero_stage"]
    if stage > 1:
        _, names = zero_stage(draft)
        draft.set("overlap.data_parallel", True, *names)
        return
    reduces = draft.flag("overlap_grad_reduce")
    draft.set("overlap.data_parallel", reduces, "overlap_grad_reduce")
    if not reduces or draft.data["parallelism"]["data"] * draft.context == 1:
        return
    gathers = stage == 1 and draft.flag("overlap_param_gather")
    stack = load_stack(draft.data["software"]["stack"])
    if gathers or (stage == 1 and stack.facts["overlap_parameter_gather"]):
        draft.fill("overlap_param_gather")
    buckets = draft.integer("ddp_bucket_size") or "megatron"
    draft.set("overlap.gradient_buckets", buckets, "ddp_bucket_size")
    if draft.pipeline > 1:
        draft.copy("align_grad_reduce")
    if gathers and interleaves:
        draft.copy("align_param_gather")

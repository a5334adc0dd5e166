"""Software stacks: hand counts of eager PyTorch's kernels, slow hosts, and remarks in reports."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from simtrain.base.resources import find_stack, list_stacks
from simtrain.durations.model import DurationModel
from simtrain.errors import InputError
from simtrain.hardware.load import load_profile
from simtrain.hardware.profile import HardwareProfile
from simtrain.iteration.memory.working import pass_memory
from simtrain.iteration.plan import Plan
from simtrain.iteration.programs.seconds import Machine
from simtrain.scenario import Scenario, check_scenario, software
from simtrain.scenario.software import (
    DEFAULT_STACK,
    AttentionKernel,
    Stack,
    load_stack,
    stack_of_framework,
)
from simtrain.studies.simulation import simulate
from simtrain.workload.ops import Op, Phase, total_flops
from simtrain.workload.passes import PassKind
from simtrain.workload.work import Collective, Elementwise, FusedAttention, Gemm
from tests.helpers.lifetimes import by_hand, bytes_of
from tests.helpers.scenario_texts import MINIMAL, scenario_of
from tests.helpers.small_layers import FFN, GPT, HEADS, LLAMA, ROWS, VOCAB, B, H, N, S, scenario
from tests.helpers.toys import a100, chunk_with, machine_of, ops_of, pass_with, plan_of, saved_bytes


def ops(one: Scenario, kind: PassKind, named: str, *, head: bool = False) -> list[Op]:
    """Return the ops of a layer, or of the head, whose names contain some words."""
    chunk = chunk_with(one, 0 if head else 1, head=head)
    return [op for op in ops_of(pass_with(one, chunk, kind)) if named in op.name]


def moved(some: list[Op]) -> int:
    return sum(op.work.moved_bytes for op in some if isinstance(op.work, Elementwise | Gemm))


def unfused(model: dict[str, Any], entry: str, **sections: Any) -> Scenario:
    return scenario(model, {entry: False}, **sections)


# ------------------------------------------------------------------------------ kernels by hand


RMS_NORM_GRADIENTS = """
weight product gradient: n n > n + n - n
weight sum gradient: n > h - n h
weight gradient: n > n - n
to fp32 gradient: n > w - n
scale gradient: w r > w
root product gradient: w w > w + w - w w
root sum gradient: w > r - w
root cube gradient: r > r
root half gradient: r > r
root gradient: r r > r
mean gradient: r > w
square power gradient: w > w + w - w
square double gradient: w > w - w
square gradient: w w > w - w w
sum gradient: w w > w - w w
from fp32 gradient: w > n
"""
"""The gradient is n, in fp32 w; rows have r numbers, the weight h. Saved: the input in fp32, its
inverse root and the normalized input."""
SWIGLU_GRADIENTS = """
values gradient: n n > n + n - n
product gradient: n n > n + n - n n
of gate gradient: n n > n + n - n n
join gradient: n n > n n
"""
SQUARED_RELU_GRADIENTS = """
power gradient: n > n + n - n
double gradient: n > n - n
square gradient: n n > n - n n
ReLU gradient: n n > n + n
"""


def assert_kernels(found: list[Op], name: str, table: str, sizes: dict[str, int]) -> None:
    """Compare kernels with a table, rows of numbers that wait for others left out."""
    expected = by_hand(table, sizes, "n")
    kernels = [row for row in bytes_of(found) if "residual" not in row[0]]
    for (words, *moved, held), (words_by_hand, *moved_by_hand, held_by_hand) in zip(
        kernels, expected, strict=True
    ):
        assert words == f"{name} {words_by_hand}"
        assert moved == moved_by_hand
        assert abs(held_by_hand - held) <= 4 * sizes.get("r", 0), words


def test_an_rms_norm_of_eager_pytorch_by_hand() -> None:
    """N = s b h elements move some bytes each; each of s b rows moves some fp32 numbers."""
    one, row = unfused(LLAMA, "fused_rms_norm"), 4 * ROWS
    sizes = {"n": 2 * N, "w": 4 * N, "r": row, "h": 2 * H}
    forward, backward = (ops(one, kind, "MLP RMS norm") for kind in ("F", "B"))
    # To fp32, square, mean, sum with epsilon, inverse root, scaling, from fp32, weight.
    assert moved(forward) == (6 + 8 + 4 + 8 + 6 + 4) * N + (1 + 2 + 2 + 1) * row
    assert_kernels(backward, "MLP RMS norm", RMS_NORM_GRADIENTS, sizes)
    # Saved: the fp32 copy, the normalized input, and one number per row.
    assert saved_bytes(forward) == 4 * N + 2 * N + row
    assert moved(ops(scenario(LLAMA, DEFAULT_STACK), "F", "MLP RMS norm")) == 4 * N
    of_heads = (unfused(each | {"qk_norm": True}, "fused_rms_norm") for each in (LLAMA, GPT))
    assert [len(ops(each, "F", "query norm")) for each in of_heads] == [8, 1]


def test_a_rotation_of_eager_pytorch_by_hand() -> None:
    """x cos + rotate_half(x) sin moves ten times the bytes of x in each pass, in five kernels."""
    one = unfused(LLAMA, "fused_rotary")
    for kind in "FB":
        for part, share in (("query", 1), ("key", 1 / 2)):
            found = ops(one, kind, f"{part} rotation")
            assert (len(found), moved(found)) == (5, 10 * 2 * N * share)


def test_a_swiglu_of_eager_pytorch_by_hand() -> None:
    """In units of the output's bytes, silu moves 2 and the product 3. The backward pass moves 3 + 3
    + 3, and 4 to join both halves.
    """
    one, part = unfused(LLAMA, "fused_activation"), 2 * ROWS * FFN
    forward, backward = (ops(one, kind, "SwiGLU") for kind in ("F", "B"))
    assert (len(forward), moved(forward)) == (2, 5 * part)
    assert_kernels(backward, "SwiGLU", SWIGLU_GRADIENTS, {"n": part})
    assert saved_bytes(forward) == 3 * part


@pytest.mark.parametrize(
    ("activation", "forward_units", "backward_units"),
    [("gelu", 4, 3), ("squared_relu", 6, 2 + 2 + 3 + 3)],
)
def test_an_activation_with_bias_of_eager_pytorch_by_hand(
    activation: str, forward_units: int, backward_units: int
) -> None:
    one, part = unfused(GPT | {"activation": activation}, "fused_activation"), 2 * ROWS * FFN
    name = "bias and GeLU" if activation == "gelu" else "bias and ReLU²"
    forward, backward = (ops(one, kind, name) for kind in ("F", "B"))
    assert (moved(forward), moved(backward)) == (forward_units * part, backward_units * part)
    if activation == "squared_relu":
        assert_kernels(backward, name, SQUARED_RELU_GRADIENTS, {"n": part})
    assert saved_bytes(forward) == part


def test_bias_dropout_and_residual_of_eager_pytorch_by_hand() -> None:
    """Per element the bias moves 4 bytes, dropout 4 and a mask of 1, the sum 6; the backward pass
    moves the same.
    """
    one, fused = unfused(GPT, "fused_dropout_add"), scenario(GPT, DEFAULT_STACK)
    names = ("MLP bias", "MLP dropout", "MLP sum")
    found = [op for op in ops(one, "F", "MLP ") if op.name in names]
    assert [op.name for op in found] == [*names]
    assert moved(found) == (4 + 5 + 6) * N
    assert saved_bytes(found) == N
    assert moved(ops(one, "B", "")) == moved(ops(fused, "B", ""))


def test_a_masked_softmax_of_eager_pytorch_by_hand() -> None:
    """The mask has one byte per score of a sequence. All scores are computed; the fused kernel
    reads half.
    """
    scores, mask = 2 * B * HEADS * S**2, B * S**2
    one = unfused(GPT, "fused_softmax")
    forward, backward = (
        [op for op in ops(one, kind, "softmax") if "dropout" not in op.name] for kind in "FB"
    )
    assert moved(forward) == (2 * scores + mask) + 2 * scores
    assert moved(backward) == 3 * scores + (2 * scores + mask)
    fused = [
        op for op in ops(scenario(GPT, DEFAULT_STACK), "F", "softmax") if "dropout" not in op.name
    ]
    assert moved(fused) == scores // 2 + scores


def test_separate_masking_by_hand() -> None:
    """Scores are divided, masked and lowered, each reading and writing all of them, and the last
    two read the mask; the sum has no backward kernel. Queries, keys and values are copied once.
    """
    scores, mask = 2 * B * HEADS * S**2, B * S**2
    together = unfused(GPT, "fused_softmax")
    kernels = {"fused_softmax": False, "separate_masking": True}
    apart = scenario(GPT, {"stack": DEFAULT_STACK} | kernels)
    more = {kind: moved(ops(apart, kind, "")) - moved(ops(together, kind, "")) for kind in "FB"}
    assert more == {"F": 2 * 2 * scores + mask + 3 * 4 * N, "B": 2 * scores}
    assert saved_bytes(ops(apart, "F", "")) == saved_bytes(ops(together, "F", ""))


def test_a_weight_gradient_that_a_kernel_adds_by_hand() -> None:
    """The product writes 16 bits. The kernel reads them and the fp32 sum, and writes the sum."""
    fused = scenario(GPT, DEFAULT_STACK)
    found, before = (
        ops(one, "B", "4h→h weight gradient")
        for one in (unfused(GPT, "fused_gradient_accumulation"), fused)
    )
    weights = H * FFN
    assert [op.name for op in found] == ["4h→h weight gradient", "4h→h weight gradient sum"]
    assert moved(found[:1]) == 2 * (ROWS * H + ROWS * FFN + weights)
    assert moved(found[1:]) == (2 + 4 + 4) * weights
    assert moved(before) == 2 * (ROWS * H + ROWS * FFN) + 2 * 4 * weights
    assert {op.phase for op in found} == {Phase.WEIGHT_GRADIENT}


@pytest.mark.parametrize("t", [1, 2])
def test_transformer_engines_cross_entropy_by_hand(t: int) -> None:
    fused = {"fused_cross_entropy": True, "cross_entropy_fusion": "te"}
    one, plain = (
        scenario(GPT, software, parallelism={"tensor": t})
        for software in (fused, {"fused_cross_entropy": False})
    )
    logits = 2 * ROWS * VOCAB // t
    forward, backward = (ops(one, kind, "", head=True) for kind in "FB")
    loss = [op for op in (*forward, *backward) if "softmax" in op.name or "to gradient" in op.name]
    assert moved(loss) == (logits + 12 * ROWS) + 2 * logits
    gathered = [op.work.array_bytes for op in forward if isinstance(op.work, Collective)]
    assert gathered == ([12 * ROWS * t] if t > 1 else [])
    kept = saved_bytes(forward)
    assert kept == saved_bytes(ops(plain, "F", "", head=True)) - logits


@pytest.mark.parametrize("t", [1, 2])
def test_megatrons_own_fused_cross_entropy_by_hand(t: int) -> None:
    """Three kernels: 16-bit logits to fp32, then two that read and write fp32. The all-reduces are
    of the maximum, and of target and sum together. At its peak, the loss holds the 16-bit logits
    and two fp32 copies, one more than unfused; both save one.
    """
    fused, plain = (
        scenario(GPT, {"fused_cross_entropy": own}, parallelism={"tensor": t})
        for own in (True, False)
    )
    logits, tokens = 2 * ROWS * VOCAB // t, 4 * ROWS
    forward, backward = (ops(fused, kind, "", head=True) for kind in "FB")
    names = ("logits maximum", "exponentials", "softmax of logits", "cross entropy gradient")
    loss = [op for op in (*forward, *backward) if op.name in names]
    assert moved(loss) == (1 + 2) * logits + 2 * (2 + 2) * logits + (2 + 1) * logits
    reduced = [op.work.array_bytes for op in forward if isinstance(op.work, Collective)]
    assert reduced == ([tokens, 2 * tokens] if t > 1 else [])
    assert max(op.holds_bytes for op in forward) == (1 + 2 + 2) * logits
    unfused = ops(plain, "F", "", head=True)
    assert max(op.holds_bytes for op in unfused) == (1 + 2) * logits
    assert saved_bytes(forward) == saved_bytes(unfused)


@pytest.mark.parametrize(("t", "arrays", "arrays_back"), [(1, 2, 3), (2, 3, 4)])
def test_peak_of_torchs_loss_by_hand(t: int, arrays: int, arrays_back: int) -> None:
    """F: fp32 logits, log-probabilities, and between them DTensor's exponentials, besides 16-bit
    logits. B: log-probabilities and the gradients of both steps, or DTensor's zeros, sum and
    product. The log-probabilities are saved. DTensor's kernels move 19 fp32 arrays.
    """
    one = scenario(GPT, "torchtitan_compiled@2024.12", parallelism={"tensor": t})
    fp32, chunk = 4 * ROWS * VOCAB // t, chunk_with(one, head=True)
    passes: tuple[PassKind, ...] = "F", "B"
    forward, backward = (pass_memory(pass_with(one, chunk, kind)) for kind in passes)
    assert forward.extra_bytes == (arrays - 1) * fp32 + fp32 // 2
    assert backward.extra_bytes == (arrays_back - 1) * fp32
    kernels = [
        op
        for op in (*ops(one, "F", "", head=True), *ops(one, "B", "", head=True))
        if isinstance(op.work, Elementwise) and not {"norm", "weight"} & {*op.name.split()}
    ]
    assert t == 1 or moved(kernels) == 19 * fp32 + 2 * 40 * ROWS


def test_a_narrow_loss_moves_and_holds_half_of_the_bytes() -> None:
    """fms-fsdp's F.cross_entropy gets bf16 logits: no kernel converts them, or their gradient."""
    both = [
        {op.name: op for kind in "FB" for op in ops(scenario(GPT, stack), kind, "", head=True)}
        for stack in ("fms_fsdp", "torchtitan_compiled@2024.12")
    ]
    assert {*both[1]} - {*both[0]} == {"logits to fp32", "logits from fp32"}
    kept, kept_wide = (loss["log-softmax of logits"] for loss in both)
    assert 2 * kept.saves[0].num_bytes == kept_wide.saves[0].num_bytes
    assert 2 * moved([kept]) == moved([kept_wide])


def test_a_loss_in_chunks_does_the_same_on_parts_of_the_tokens() -> None:
    """Products and loss have as many FLOPs and bytes, all in the forward pass. Each chunk's weight
    gradient is added to an fp32 one, and the sums of hidden gradients are cast twice.
    """
    stack = {"stack": "torchtitan_compiled", "loss_chunks": 8}
    whole, chunks = (scenario(GPT, stack | {"loss_chunks": n}) for n in (1, 8))
    forward, backward = (ops(chunks, kind, "", head=True) for kind in ("F", "B"))
    before = [op for kind in ("F", "B") for op in ops(whole, kind, "", head=True)]

    def named(some: list[Op], word: str) -> list[Op]:
        return [op for op in some if word in op.name and not op.name.endswith("sum")]

    products = [op for op in forward if isinstance(op.work, Gemm)]
    assert len(products) == 8 * 3
    assert sum(op.work.flops for op in products) == total_flops(before)
    for word in ("softmax", "logits to gradient", "cross entropy"):
        assert moved(named(forward, word)) == moved(named(before, word))
    sums = [op for op in forward if op.name.endswith("weight gradient sum")]
    assert [moved([op]) for op in sums] == 8 * [(2 + 4 + 4) * VOCAB * H]
    hidden = [op for op in (*forward, *backward) if "chunks" in op.name]
    assert moved(hidden) == 2 * 6 * ROWS * H + 4 * ROWS * H
    logits = max(op.holds_bytes for op in before if "softmax" in op.name)
    held = 4 * (ROWS + VOCAB) * H
    assert max(op.holds_bytes for op in forward if "softmax" in op.name) == logits // 8 + held


def test_fsdp2_overlaps_gathers_and_reductions_unless_told_otherwise() -> None:
    for stack in ("torchtitan", "torchtitan_compiled", "fms_fsdp"):
        batch = {"micro": 1, "global": 2}
        split = {"batch": batch, "parallelism": {"data": 2}, "memory": {"zero_stage": 3}}
        one = scenario(GPT, stack, **split)
        assert one.overlaps_data_parallel


def test_dtensor_copies_what_it_gathers_or_scatters_along_the_sequence() -> None:
    """In each direction, attention and MLP gather all tokens of several sequences, and scatter."""
    split = {"tensor": 2, "sequence_parallel": True}

    def copies(**sections: Any) -> list[Op]:
        one = scenario(LLAMA, "torchtitan", parallelism=split, **sections)
        kinds: tuple[PassKind, ...] = "F", "B"
        passes, options = (
            (pass_with(one, chunk_with(one, 1), each) for each in kinds),
            plan_of(one).options,
        )
        named = [op for each in passes for op in ops_of(replace(each, options=options))]
        return [op for op in named if op.name.endswith("copy")]

    assert [moved([op]) for op in copies()] == 8 * [2 * 2 * ROWS * H]
    assert not copies(overlap={"tensor_parallel": True})
    assert not copies(batch={"micro": 1, "global": 1})


def test_adam_of_foreach_passes_over_twenty_arrays() -> None:
    """The fused kernel passes over seven arrays; foreach has eight kernels."""
    fused, foreach = (scenario(GPT, {"fused_optimizer": own}) for own in (True, False))
    number = Plan.of(fused, 8).num_parameters
    adam = [
        [op for op in plan_of(one).steps[0]["update"] if op.name.startswith("Adam")]
        for one in (fused, foreach)
    ]
    assert [moved(some) for some in adam] == [7 * 4 * number, 20 * 4 * number]
    assert len(adam[1]) == 8


# --------------------------------------------------------------------------- hosts that limit


def layer_pass(one: Scenario, kind: PassKind = "F") -> tuple[Machine, list[float], float]:
    """Return the time of each kernel of a layer, and of the pass."""
    machine = machine_of(a100())
    a_pass = plan_of(one).layers_pass(1, kind)
    kernels_s = [machine.model.seconds(op.work) for op in ops_of(a_pass)]
    return machine, kernels_s, machine.time(a_pass).duration_s


@pytest.mark.parametrize("kind", ["F", "B"])
def test_a_pass_whose_host_is_slower_than_its_kernels_takes_the_hosts_time(kind: PassKind) -> None:
    """The host launches n kernels in n h seconds; then the last kernel runs."""
    one = scenario(GPT, {"host_issue": "1 ms"})
    _, kernels_s, duration_s = layer_pass(one, kind)
    assert max(kernels_s) < 1e-3
    assert duration_s == pytest.approx(len(kernels_s) * 1e-3 + kernels_s[-1], rel=1e-12)


def test_cuda_graphs_leave_only_the_kernels() -> None:
    one = scenario(GPT, {"stack": "deepspeed_2022", "cuda_graphs": True})
    _, kernels_s, duration_s = layer_pass(one)
    assert duration_s == pytest.approx(sum(kernels_s), rel=1e-12)


def test_the_host_of_the_scenario_precedes_that_of_the_stack() -> None:
    stack, own = {"stack": "deepspeed_2022"}, {"host": {"issue": "20 us"}}
    assert scenario(GPT, DEFAULT_STACK).host_issue_s is None
    assert scenario(GPT, stack).host_issue_s == 52e-6
    assert scenario(GPT, stack, hardware=own).host_issue_s is None
    both = scenario(GPT, stack | {"host_issue": "30 us"}, hardware=own)
    assert both.host_issue_s == pytest.approx(30e-6)


def test_attention_at_half_speed_takes_twice_the_time_beyond_its_latency() -> None:
    def kernel_s(speed: float) -> float:
        one = scenario(
            LLAMA | {"seq_length": 8192}, {"stack": "megatron_core", "attention_speed": speed}
        )
        (op,) = ops(one, "F", "fused attention")
        return machine_of(a100()).model.seconds(op.work)

    latency_s = a100().memory_bound.kernel_latency.value
    assert kernel_s(0.5) - latency_s == pytest.approx(2 * (kernel_s(1.0) - latency_s))


def test_flash_attention_2_takes_longer_by_the_profiles_ratio() -> None:
    op = FusedAttention(64, 8192, 128)

    def kernels_s(profile: HardwareProfile) -> list[float]:
        model, latency_s = DurationModel(profile), profile.memory_bound.kernel_latency.value
        kernels = get_args(AttentionKernel)
        return [model.seconds(replace(op, kernel=kernel)) - latency_s for kernel in kernels]

    h100 = load_profile("h100_sxm")
    newest_s, older_s = kernels_s(h100)
    assert h100.fused_attention and h100.fused_attention.flash_attention_2
    assert h100.fused_attention.flash_attention_2.value < 1
    assert older_s == pytest.approx(newest_s / h100.fused_attention.flash_attention_2.value)
    newest_s, older_s = kernels_s(a100())  # whose newest kernel is FlashAttention-2
    assert older_s == newest_s


# ------------------------------------------------------------------------------------- stacks


@pytest.mark.parametrize(
    ("words", "stack"),
    [
        ("NeMo", "nemo"),
        ("mbridge 26.02", "megatron_bridge@26.02"),
        ("MLPerf Training v5.0, NeMo 25.04, Llama 3.1 on 64 H100s", "mlperf_nvidia@5.0"),
        ("MLPerf Training 2.1, fp8", "mlperf_nvidia"),
        ("torchtitan vanilla TP; bf16; compile", "torchtitan_compiled"),
        ("torchtitan eager (no torch.compile)", "torchtitan"),
        ("an eager description of something else", None),
        ("", None),
    ],
)
def test_the_stack_of_a_framework_is_the_one_with_most_of_its_words(
    words: str, stack: str | None
) -> None:
    assert stack_of_framework(words) == stack


VARIATION = """\
version: 1
name: ours
base: BASE
description: ours
fused_rotary: {value: false, source: "rope.py"}
"""


def variation_of(base: str, folder: Path, more: str = "") -> Stack:
    """Load a variation from a file beside copies of the shipped stacks."""
    for name in list_stacks():
        text = find_stack(name).read_text("utf-8")
        (folder / f"{name}.yaml").write_text(text, "utf-8")
    (folder / "ours.yaml").write_text(VARIATION.replace("BASE", base) + more, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(software, "find_stack", lambda name: folder / f"{name}.yaml")
        return load_stack.__wrapped__("ours")


def test_a_variation_is_its_written_out_form(tmp_path: Path) -> None:
    base = load_stack("megatron_core")
    variation = variation_of("megatron_core", tmp_path)
    assert variation.facts == base.facts | {"fused_rotary": False}
    assert variation.fused_rotary.source == "rope.py"
    assert (variation.name, variation.frameworks) == ("ours", [])


@pytest.mark.parametrize(
    ("base", "more", "code", "line", "excerpt"),
    [
        ("nemo", "", "E206", 3, "base is nemo, which has a base itself"),
        ("megatron_core", "cuda_graphs: {value: true}\n", "E202", 6, "cuda_graphs.source"),
        ("megatron_core", "gradients: {value: fp8, source: x}\n", "E205", 6, "gradients.value"),
    ],
)
def test_variations_are_read_strictly(
    base: str, more: str, code: str, line: int, excerpt: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        variation_of(base, tmp_path, more)
    # Without a base by name, all entries are missing too.
    problem = next(problem for problem in caught.value.problems if problem.code == code)
    assert excerpt in problem.message
    assert problem.location is not None
    assert (Path(problem.location.file).name, problem.location.line) == ("ours.yaml", line)


@pytest.mark.parametrize("recompute", ["full", "selective", {"modules": ["mlp"]}])
def test_recipes_capture_recompute_in_graphs_of_the_whole_iteration(recompute: Any) -> None:
    for name in ("nemo", "megatron_bridge", "mlperf_nvidia"):
        one = scenario(LLAMA, {"stack": name, "cuda_graphs": True}, recompute=recompute)
        check_scenario(one)
    with pytest.raises(InputError, match="E338"):
        check_scenario(one.replace({"software.stack": "megatron_core"}))


@pytest.mark.parametrize("name", list_stacks())
def test_each_shipped_stack_runs_and_is_named(name: str) -> None:
    stack = load_stack(name)
    assert stack.name == name
    result = simulate(scenario(LLAMA, name))
    assert result.to_dict()["software"] == name
    assert result.scenario.attention_backend == stack.attention_backend.value


_WITHOUT_CALLS = {"host_call": "0 s"}
"""Times of the GPU alone, for layers so small that they wait for the calls of a framework."""


def test_scenarios_override_entries_of_their_stack() -> None:
    eager = scenario(GPT, "eager")
    assert (eager.in_place_cross_entropy, eager.overlaps_tensor_parallel) == (False, False)
    own = scenario(
        GPT, "eager", memory={"in_place_cross_entropy": True}, overlap={"tensor_parallel": True}
    )
    assert (own.in_place_cross_entropy, own.overlaps_tensor_parallel) == (True, True)
    assert scenario(LLAMA, "megatron_core").attention_backend == "fused"
    core = scenario(LLAMA, DEFAULT_STACK).replace({"software": "megatron_core"})
    assert core.attention_backend == "fused"
    assert core.replace({"software.stack": "eager"}).attention_backend == "unfused"


def test_less_fused_stacks_are_slower() -> None:
    names = "megatron_core", "torchtitan_compiled", "torchtitan"
    times_s = [
        simulate(scenario(LLAMA, _WITHOUT_CALLS | {"stack": name})).iteration_time_s
        for name in names
    ]
    assert all(faster < slower for faster, slower in itertools.pairwise(times_s))


# ------------------------------------------------------------------------- errors and remarks


@pytest.mark.parametrize(
    ("text", "code", "excerpt"),
    [
        ("software: deepspeed_2019\n", "E206", 'there is no software stack named "deepspeed_2019"'),
        ("software: {stack: megatron_core, fused_norm: true}\n", "E201", "fused_norm"),
        ("software: {host_issue: -1 us}\n", "E206", "must not be negative"),
        ("software: {fused_softmax: 1}\n", "E203", "software.fused_softmax"),
        ("software: {attention_speed: 0}\n", "E204", "software.attention_speed"),
        ("software: {cublas_workspace: 0 B}\n", "E206", "software.cublas_workspace"),
        (
            "memory: {in_place_cross_entropy: true}\nsoftware: {fused_cross_entropy: true}\n",
            "E381",
            "the software stack fuses the cross entropy",
        ),
    ],
)
def test_wrong_stacks_and_entries_are_refused(text: str, code: str, excerpt: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario_of(MINIMAL + text)
    (problem,) = caught.value.problems
    assert (problem.code, excerpt in str(problem)) == (code, True)
    assert problem.location is not None
    assert problem.location.line in (9, 10)
    assert problem.fix

"""Nine kinds of programs: their products are those that torch counts, and so are their bytes."""

import functools
import gc
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import (
    FlopCounterMode,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from simtrain.guests.recording.child import step as recorder
from simtrain.guests.recording.child.op_log import OpLog
from simtrain.guests.recording.child.problems import Unrecordable
from simtrain.guests.recording.child.recording import program_of
from simtrain.guests.recording.program import ProgramOp, RecordedProgram, expanded
from simtrain.guests.recording.works import RecordedKernel, has_rule, kernel_work
from tests.helpers import kinds_of_programs as programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]
GPUS = 4
_BY_DEFAULT = [*programs.KINDS][::4]


def some(kinds: Iterable[str]) -> list[Any]:
    """Leave most kinds to CI."""
    return [
        each if each in _BY_DEFAULT else pytest.param(each, marks=pytest.mark.ci) for each in kinds
    ]


_BACKWARD_OF_GROUPS = "aten.convolution_backward"
"""torch counts it as if the convolution had no groups."""
ATTENTION = {
    torch.ops.simtrain.attention: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.simtrain.attention_backward: lambda g, q, k, v, *_, **__: sdpa_backward_flop_count(
        g, q, k, v
    ),
}


def recorded(function: Callable[..., Any], around: Any = None, **arguments: Any) -> RecordedProgram:
    """Record a program, inside a context of torch if one is given."""
    run = recorder._run

    def surrounded(*others: Any, is_logged: bool) -> None:
        if not (is_logged and around):
            run(*others, is_logged=is_logged)
            return
        with around(*others):
            run(*others, is_logged=is_logged)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "_run", surrounded)
        step = recorder.record(function, arguments, GPUS)
    return RecordedProgram.model_validate_json(program_of(step, {"command": "x", "gpus": GPUS}))


def ops_of(program: RecordedProgram) -> list[ProgramOp]:
    return [op for runs in program.passes.values() for op in expanded(runs)]


def flops_of(program: RecordedProgram) -> Counter[str]:
    """Return the FLOPs of products by op; attention counts scores that a causal mask leaves out."""
    counts: Counter[str] = Counter()
    for op in ops_of(program):
        if op.group is None:
            whole = op.model_copy(update={"options": {}}) if "attention" in op.op else op
            work = kernel_work(RecordedKernel(whole, False))
            counts[op.op] += getattr(work, "flops", 0)
    return +counts


@pytest.mark.parametrize("kind", some(programs.KINDS))
def test_products_are_those_that_torch_counts(kind: str) -> None:
    counter = FlopCounterMode(display=False, custom_mapping=ATTENTION)
    program = recorded(programs.KINDS[kind], lambda *_: counter)
    counts = {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    groups = kind == "a state space"
    for each in (_BACKWARD_OF_GROUPS,) * groups:
        assert 0 < flops_of(program)[each] < counts[each]
        counts[each] = flops_of(program)[each]
    assert flops_of(program) == counts
    counted = {str(packet) for packet in flop_registry}
    assert not [op.op for op in ops_of(program) if op.op in counted and not has_rule(op)]


def peak_of(program: RecordedProgram) -> int:
    """Return the most bytes that the ops hold."""
    states = program.states
    bytes_ = states.parameters_bytes + states.optimizer_bytes + states.other_bytes
    peak = bytes_
    for op in ops_of(program):
        bytes_ += op.makes_bytes
        peak = max(peak, bytes_)
        bytes_ -= op.frees_bytes
    return peak


@pytest.mark.parametrize("kind", some(programs.KINDS))
def test_what_stays_for_the_optimizer_is_what_lives(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved tensors are gone by then, so every storage has a tensor that Python knows."""
    begin, sums = OpLog.begin, []

    def checked(log: OpLog, phase: str) -> None:
        begin(log, phase)
        if phase == "optimizer":
            gc.collect()
            living = [x for x in gc.get_objects() if isinstance(x, FakeTensor)]
            storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in living}
            ours = (number for key, number in log.live.items() if key in storages)
            sums.append((log.held_bytes, sum(ours)))

    monkeypatch.setattr(OpLog, "begin", checked)
    recorded(programs.KINDS[kind])
    ((held, living),) = sums
    assert 0 <= held - living < 64 and living > 0  # numbers that are part of an op


TRACKED = [kind for kind in programs.KINDS if "accumulation" not in kind]
"""`MemTracker` refuses losses with backward passes."""


@pytest.mark.parametrize("kind", some(TRACKED))
def test_bytes_are_those_that_torch_holds(kind: str) -> None:
    tracker = MemTracker()

    def tracked(log: Any, model: Any, batch: Any, loss: Any, optimizer: Any) -> MemTracker:
        tracker.track_external(model, optimizer, *torch.utils._pytree.tree_leaves(batch))
        return tracker

    program = recorded(programs.KINDS[kind], tracked)
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    assert peak_of(program) == pytest.approx(peak["Total"], rel=0.02)


def test_parts_that_a_loss_runs_by_itself_count_as_tokens_and_gradients() -> None:
    """Gradients of earlier microbatches are unsharded in fp32, and freed when they are reduced."""
    program = recorded(programs.accumulation_in_the_loss)
    assert (program.sequences, program.tokens) == (2 * programs.MICROBATCHES, programs.LENGTH)
    made = sum(op.gradient_bytes for op in expanded(program.forward))
    freed = sum(op.freed_gradient_bytes for op in expanded(program.backward))
    assert made == freed == 4 * program.num_parameters


def plain() -> programs.Step:
    model = programs.Decoder()
    return model, programs.tokens(), programs.next_token, programs.adam(model)


def uses(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Any]:
    def train() -> Any:
        model = torch.nn.Linear(64, 64, bias=False)
        return model, torch.zeros(64, 64), lambda net, x: change(net(x)).sum()

    return train


REFUSED: dict[str, Callable[[], Any]] = {
    "aten.linalg_inv_ex": uses(torch.linalg.inv),
    "aten.mv": uses(lambda x: x @ x[0]),
    "transposed": uses(lambda x: torch.conv_transpose1d(x[None], x[..., None])),
    "aten.mkldnn_rnn_layer": uses(lambda x: torch.nn.LSTM(64, 64)(x)[0]),
    "FullyShardedDataParallel": lambda: torch.distributed.fsdp.FullyShardedDataParallel(None),
    "aten._trilinear": uses(lambda x: torch.nn.functional.bilinear(x, x, x.new_ones(4, 64, 64))),
    "CPUOffloadPolicy": lambda: torch.distributed.fsdp.CPUOffloadPolicy(),
    "nested_tensor": lambda: torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged),
    "save_on_cpu": lambda: torch.autograd.graph.save_on_cpu(),
    "pack_sequence": lambda: torch.nn.utils.rnn.pack_sequence([torch.zeros(2)]),
    "more than": uses(lambda x: functools.reduce(lambda y, _: y + 1, range(2000), x)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simtrain.guests.recording.child.op_log._MOST_OPS", 1000)
    with pytest.raises(Unrecordable, match=name) as caught:
        recorded(REFUSED[name])
    assert caught.value.why and caught.value.fix


@pytest.mark.parametrize("is_causal", [True, False])
def test_flexible_attention_is_attention(is_causal: bool) -> None:
    def train() -> Any:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
            return (query >= key) & (is_causal | (query - key < 100))

        mask = create_block_mask(seen, None, None, 256, 256, device="cuda")
        model = programs.Attention(is_causal)

        def loss(net: programs.Attention, x: torch.Tensor) -> torch.Tensor:
            heads = net.qkv(x).view(2, 256, 3, 4, -1).permute(2, 0, 3, 1, 4)
            return flex_attention(*heads.unbind(), block_mask=mask).sum()

        return model, torch.zeros(2, 256, programs.WIDTH), loss

    program = recorded(train)
    (forward,) = (op for op in ops_of(program) if op.op == "simtrain.attention")
    assert forward.options == {"is_causal": is_causal}
    assert bool(program.remarks) != is_causal

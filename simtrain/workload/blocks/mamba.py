"""The mixer of a Mamba-2 layer: projection, convolution, scan in chunks, norm, projection.

Source: Megatron-Core's `MambaMixer` (core/ssm/mamba_mixer.py, `_ssm_training`), which calls
`mamba_split_conv1d_scan_combined` of mamba_ssm. Its forward pass saves only the projected input and
the output before the gate. Its backward pass runs the convolution and the first kernels of the scan
again (ops/triton/ssd_combined.py, `MambaSplitConv1dScanCombinedFn`).

The scan of a chunk of q tokens (Dao and Gu 2024, Section 6) has products of C and B (q × q scores
of each group), of the masked scores and x, of B and x (the state that the chunk adds), and of C and
the state before the chunk. Between chunks, states are summed one after another.
"""

from __future__ import annotations

from collections.abc import Iterator

from simtrain.base.mesh import Group
from simtrain.base.values import dataclass
from simtrain.scenario.model import Mamba
from simtrain.workload.blocks.linear import column_linear, row_linear
from simtrain.workload.ops import Op, Ops, Phase, Tensor, collective, elementwise, gradient
from simtrain.workload.tape import Microbatch, Parameter, Tape
from simtrain.workload.work import FP32_BYTES, CollectiveKind, KernelFamily, ScanKernel

CONV_WIDTH = 4
"""Tokens of the causal convolution (`d_conv`)."""
_MODEL_FLOPS = 7
"""FLOPs of the model per token, channel and number of a state (Megatron-LM's `mamba_layer_flops`,
training/training.py): the scan token by token, without chunks. The backward pass has twice as
many."""
_LABEL = "Mamba"


def mamba_mixer(tape: Tape, x: Tensor, mamba: Mamba, heads: int) -> Tensor:
    """Record the mixer: from this rank's normalized tokens to this rank's output.

    `mamba` and `heads` are those of the whole layer, before tensor parallelism.
    """
    batch = tape.microbatch
    whole = _Scan.of(batch, mamba, heads)  # all heads of a rank, for its own tokens
    columns = batch.tensor.num_ranks * whole.projected_width
    projected = column_linear(tape, x, columns, "Mamba in", _LABEL, bias=False)
    scan, context = whole, batch.context and batch.context.group
    if context:
        scan = _Scan.of(batch, mamba, heads, context.num_ranks)
        projected = _tokens_for_channels(tape, projected, whole, scan, context)
    several = tape.microbatch.sequences > 1
    if several:
        projected = _sequences_first(tape, projected, "Mamba input by sequence", backward=True)
    y = _scan(tape, projected, scan, whole)
    if several:
        y = _sequences_first(tape, y, "Mamba output by token", backward=False)
    if context:
        y = _channels_for_tokens(tape, y, whole, context)
    return row_linear(tape, _group_norm(tape, y, whole), "Mamba out", _LABEL, bias=False)


def _sequences_first(tape: Tape, x: Tensor, name: str, *, backward: bool) -> Tensor:
    """Record a copy that swaps tokens and sequences (`rearrange(...).contiguous()`).

    The gradient of the input is copied back before the projection reads it; the scan reads that of
    its output in any order.
    """
    y, size, stream = tape.tensor(name, x.rows, x.width), x.num_bytes, KernelFamily.STREAM
    ops: Ops = (gradient(name, size, size, family=stream),) if backward else ()
    return tape.record(name, (x,), y, (elementwise(name, size, size, family=stream),), ops)


def _tokens_for_channels(tape: Tape, x: Tensor, whole: _Scan, scan: _Scan, group: Group) -> Tensor:
    """Exchange tokens for channels of the gate, of x, B, C and the time steps, one after another.

    Then each rank has all tokens in order, and 1/n of the channels. B and C are repeated first if
    there are more ranks than groups. Source: core/ssm/mamba_context_parallel.py (`pre_conv_ssm`).
    """
    y = tape.tensor("Mamba input of all tokens", scan.tokens, scan.projected_width)
    groups = scan.b  # Bytes of B after the exchange, as many as before it.
    steps = whole.array(whole.heads)
    parts = {"gate": whole.x, "x": whole.x, "B": groups, "C": groups, "steps": steps}
    present_bytes = x.num_bytes + y.num_bytes  # The input, and the parts that were received.

    def exchange(phase: Phase) -> Iterator[Op]:
        """Copy each part by receiver, and send it."""
        ending = "" if phase is Phase.FORWARD else " gradient"
        for name, size in parts.items():
            if groups > whole.b and name in ("B", "C"):
                sizes = (whole.b, size) if phase is Phase.FORWARD else (size, whole.b)
                yield elementwise(
                    f"{name}{ending} repeated", *sizes, phase, holds_bytes=present_bytes + size
                )
            holds = present_bytes + 2 * size
            yield elementwise(f"{name}{ending} packed", size, size, phase, holds_bytes=holds)
            work = CollectiveKind.ALL_TO_ALL, size, group
            yield collective(f"{name}{ending} all-to-all", *work, phase, holds_bytes=holds)

    back, total = Phase.INPUT_GRADIENT, y.num_bytes
    forward = (
        *exchange(Phase.FORWARD),
        elementwise("Mamba input joined", total, total),
        elementwise("Mamba input in order", total, total),
    )
    backward = (
        elementwise("Mamba input gradient in order", total, total, back),
        *exchange(back),
        elementwise("Mamba input gradient joined", x.num_bytes, x.num_bytes, back),
    )
    return tape.record("tokens for channels", (x,), y, forward, backward)


def _channels_for_tokens(tape: Tape, x: Tensor, whole: _Scan, group: Group) -> Tensor:
    """Exchange channels for tokens after the scan (`post_conv_ssm`)."""
    name, size = "Mamba output", x.num_bytes
    y = tape.tensor(f"{name} of own tokens", whole.tokens, whole.width)

    def exchange(phase: Phase) -> Ops:
        """Copy, send, and copy again."""
        ending = "" if phase is Phase.FORWARD else " gradient"
        work = CollectiveKind.ALL_TO_ALL, size, group
        return (
            elementwise(f"{name}{ending} packed", size, size, phase),
            collective(f"{name}{ending} all-to-all", *work, phase),
            elementwise(f"{name}{ending} in order", size, size, phase),
        )

    passes = exchange(Phase.FORWARD), exchange(Phase.INPUT_GRADIENT)
    return tape.record("channels for tokens", (x,), y, *passes)


@dataclass(frozen=True, slots=True)
class _Scan:
    """The arrays of the scan on this rank, in bytes, and its FLOPs.

    Args:
        tokens: of all sequences.
        heads, groups: as in the scenario, for this rank.
        element_bytes: of activations.
        width, conv_width: channels of the heads, and of what the convolution sees.
        x, b, wide_b, steps, states, narrow_states, scores: arrays; wide ones are in fp32.
    """

    tokens: int
    heads: int
    groups: int
    element_bytes: int
    width: int
    conv_width: int
    x: int
    b: int
    wide_b: int
    steps: int
    states: int
    narrow_states: int
    scores: int
    score_flops: int
    masked_flops: int
    state_flops: int
    model_flops: int

    @classmethod
    def of(cls, batch: Microbatch, mamba: Mamba, heads: int, context_ranks: int = 1) -> _Scan:
        """Return the part of a tensor-parallel rank.

        With `context_ranks`, these ranks have exchanged tokens for heads: each has all tokens of
        some heads. If they are more than groups, several ranks have the same group.
        """
        num_ranks, chunk, length = batch.tensor.num_ranks, mamba.chunk_size, batch.seq_length
        length *= context_ranks
        # Each sequence is filled up to whole chunks.
        chunk_tokens = batch.sequences * -(-length // chunk) * chunk
        heads, groups = heads // num_ranks // context_ranks, mamba.num_groups // num_ranks
        groups = max(1, groups // context_ranks)
        tokens, size = batch.sequences * length, batch.element_bytes
        in_chunks = chunk_tokens * chunk
        width, state = heads * mamba.head_dim, groups * mamba.state_dim
        states = chunk_tokens // chunk * width * mamba.state_dim * FP32_BYTES
        return cls(
            *(tokens, heads, groups, size, width, width + 2 * state),
            x=tokens * width * size,
            b=tokens * state * size,
            wide_b=tokens * state * FP32_BYTES,
            steps=chunk_tokens * heads * FP32_BYTES,
            states=states,
            narrow_states=states * size // FP32_BYTES,
            scores=in_chunks * groups * FP32_BYTES,
            score_flops=2 * in_chunks * state,
            masked_flops=in_chunks * width,
            state_flops=2 * chunk_tokens * width * mamba.state_dim,
            model_flops=_MODEL_FLOPS * tokens * width * mamba.state_dim,
        )

    @property
    def projected_width(self) -> int:
        return self.width + self.conv_width + self.heads

    def array(self, width: int) -> int:
        return self.tokens * width * self.element_bytes


def _scan(tape: Tape, projected: Tensor, scan: _Scan, whole: _Scan) -> Tensor:
    """Record the convolution, the scan and the gate, which are one function of autograd.

    Context-parallel ranks hold the parameters of the `whole` scan.
    """
    y = tape.tensor("gated scan output", scan.tokens, scan.width)
    before_gate = tape.tensor("scan output", scan.tokens, scan.width)
    parameters = (
        Parameter((CONV_WIDTH + 1) * whole.conv_width),  # The convolution's weight and bias.
        Parameter(3 * whole.heads),  # The time step's bias, A and D.
    )
    forward = tuple(_forward(scan, projected, before_gate))
    backward = tuple(_backward(scan, projected, before_gate))
    inputs, outputs = (projected,), (y,)
    tape.record("Mamba scan", inputs, outputs, forward, backward, parameters=parameters)
    return y


def _forward(scan: _Scan, projected: Tensor, before_gate: Tensor) -> Iterator[Op]:
    yield from _of_heads(scan, ("decay rate", "decay rate sign", "step bias in fp32"))
    conv = scan.array(scan.conv_width)
    held_bytes = conv + projected.num_bytes
    yield elementwise("causal convolution", conv, conv, saves=(projected,), holds_bytes=held_bytes)
    cumsum, scores, state = _chunk_kernels(scan, Phase.FORWARD, conv)
    yield cumsum
    yield state
    held_bytes = conv + 2 * scan.steps + scan.states + scan.narrow_states
    sizes = scan.states, scan.narrow_states
    yield _kernel("state passing", *sizes, Phase.FORWARD, held_bytes)
    yield scores
    read = scan.scores + 2 * scan.x + 2 * scan.steps + scan.b + scan.narrow_states
    held_bytes = conv + 2 * scan.steps + scan.narrow_states + scan.scores + 2 * scan.x
    scanned = _kernel(
        "chunk scan",
        read,
        2 * scan.x,
        Phase.FORWARD,
        held_bytes,
        flops=scan.masked_flops + scan.state_flops,
        model_flops=scan.model_flops,
    )
    yield scanned.replace(saves=(before_gate,))


def _chunk_kernels(scan: _Scan, phase: Phase, held_bytes: int) -> tuple[Op, Op, Op]:
    """Return the kernels that both passes run: decay, scores, and the state of each chunk.

    `held_bytes` of other activations and gradients exist. Forward, the scores follow the states;
    backward, they precede them.
    """
    steps, present_bytes = 2 * scan.steps, held_bytes + 2 * scan.steps
    size, is_forward = scan.array(scan.heads), phase is Phase.FORWARD
    with_scores = present_bytes + scan.scores
    return (
        _kernel("chunk cumsum", size, steps, phase, present_bytes),
        _kernel(
            "chunk scores",
            2 * scan.b,
            scan.scores,
            phase,
            with_scores + (scan.narrow_states if is_forward else 0),
            flops=scan.score_flops,
        ),
        _kernel(
            "chunk state",
            scan.b + scan.x + steps,
            scan.states,
            phase,
            (present_bytes if is_forward else with_scores) + scan.states,
            flops=scan.state_flops,
        ),
    )


def _backward(scan: _Scan, projected: Tensor, before_gate: Tensor) -> Iterator[Op]:
    """Yield the kernels of the backward pass, in the order in which they run.

    The gradients of the output and of the projected input exist all the time, the other arrays from
    the kernel that writes them.
    """
    phase, x = Phase.INPUT_GRADIENT, scan.x
    conv, size = scan.array(scan.conv_width), scan.array(scan.heads)
    present_bytes = x + projected.num_bytes + conv
    yield elementwise("causal convolution again", conv, conv, phase, holds_bytes=present_bytes)
    # The gradient of the convolution's output, and a copy of the time steps.
    present_bytes += conv + size
    stream = KernelFamily.STREAM
    yield elementwise("step copy", size, size, phase, holds_bytes=present_bytes, family=stream)
    yield from _chunk_kernels(scan, phase, present_bytes)
    present_bytes += 2 * scan.steps + scan.scores + 2 * scan.states
    yield _kernel("state passing", scan.states, scan.states, phase, present_bytes)
    # The gradient before the gate; the states of single chunks are freed.
    present_bytes += x - scan.states
    gate = _kernel("gate gradient", 4 * x, 2 * x, phase, present_bytes + x)
    yield gate.replace(reads=(projected, before_gate))
    yield from _state_gradients(scan, present_bytes)
    # From here on, the gradients of states exist in the compute type, and one array of steps.
    present_bytes += 2 * scan.narrow_states - scan.states + scan.steps
    yield from _scan_gradients(scan, present_bytes)
    # The gradients of B and C with one array of steps each, and those of the scores.
    present_bytes += 2 * (scan.wide_b + scan.steps) + scan.scores
    yield from _step_gradients(scan, present_bytes)
    convolution = elementwise("causal convolution gradient", 2 * conv, conv, phase)
    held_bytes = 2 * projected.num_bytes + conv
    yield convolution.replace(reads=(projected,), holds_bytes=held_bytes)
    yield from _of_heads(scan, ("decay rate", "decay rate sign", "step bias"), phase)


def _state_gradients(scan: _Scan, present_bytes: int) -> Iterator[Op]:
    """Yield the kernels of the gradients of each chunk's state, and of the states before it.

    Other arrays of `present_bytes` exist, here as in the functions below.
    """
    phase, states, narrow = Phase.INPUT_GRADIENT, scan.states, 2 * scan.narrow_states
    present_bytes += states
    read, flops = scan.b + scan.steps + scan.x, scan.state_flops
    yield _kernel("state gradient", read, states, phase, present_bytes, flops=flops)
    yield _kernel("state passing gradient", 2 * states, narrow, phase, present_bytes + narrow)


def _scan_gradients(scan: _Scan, present_bytes: int) -> Iterator[Op]:
    """Yield the kernels of the gradients of x, B, C and the scores."""
    phase, steps, x, b, flops = Phase.INPUT_GRADIENT, scan.steps, scan.x, scan.b, scan.state_flops
    yield _kernel(
        "chunk scan gradient",
        2 * x + scan.scores + 2 * steps + b + scan.narrow_states,
        x + steps,
        phase,
        present_bytes,
        flops=scan.masked_flops + flops,
        model_flops=2 * scan.model_flops,
    )
    for name, num_steps in (("B", 2), ("C", 1)):
        present_bytes += scan.wide_b + steps
        sizes = x + scan.narrow_states + num_steps * steps + b, scan.wide_b + steps
        yield _kernel(f"{name} gradient", *sizes, phase, present_bytes, flops=flops)
    present_bytes += scan.scores
    sizes = 2 * x + 2 * steps, scan.scores
    yield _kernel("scores gradient", *sizes, phase, present_bytes, flops=scan.masked_flops)
    sizes = b + scan.scores + scan.wide_b, b
    for name in ("B", "C"):
        yield _kernel(f"{name} gradient sum", *sizes, phase, present_bytes, flops=scan.score_flops)


def _step_gradients(scan: _Scan, present_bytes: int) -> Iterator[Op]:
    phase, steps, size = Phase.INPUT_GRADIENT, scan.steps, scan.array(scan.heads)
    for name in ("decay flip", "decay cumsum", "decay flip back"):
        yield elementwise(name, steps, steps, phase, holds_bytes=present_bytes + steps)
    sizes = 2 * scan.x + 2 * steps + scan.scores, steps
    yield _kernel("decay gradient", *sizes, phase, present_bytes + steps, flops=scan.masked_flops)
    for name in ("decay gradient sum", "decay gradient total"):
        yield elementwise(name, 2 * steps, steps, phase, holds_bytes=present_bytes + 2 * steps)
    yield _kernel("chunk cumsum gradient", 2 * steps + size, size, phase, present_bytes)


def _of_heads(scan: _Scan, names: tuple[str, ...], phase: Phase = Phase.FORWARD) -> Iterator[Op]:
    """Yield kernels on one number per head, which the host launches too."""
    size = scan.heads * FP32_BYTES
    ending = "" if phase is Phase.FORWARD else " gradient"
    for name in names:
        yield elementwise(f"{name}{ending}", size, size, phase, holds_bytes=0)


def _kernel(
    name: str,
    read_bytes: int,
    write_bytes: int,
    phase: Phase,
    held_bytes: int,
    *,
    flops: int = 0,
    model_flops: int = 0,
) -> Op:
    """Return a kernel of the scan during which `held_bytes` of activations and gradients exist."""
    is_backward, family = phase is not Phase.FORWARD, KernelFamily.CHUNK_SCAN
    work = ScanKernel(read_bytes, write_bytes, family, is_backward, flops, model_flops)
    return Op(name, work, phase, holds_bytes=held_bytes)


def _group_norm(tape: Tape, x: Tensor, scan: _Scan) -> Tensor:
    """Record the RMS norm over each group's channels, whose weight the ranks divide.

    It saves its input and the inverse root of each group. The scan has applied the gate.
    """
    name, size, family = "Mamba group norm", x.num_bytes, KernelFamily.RMS_NORM
    y = tape.tensor(f"{name} output", x.rows, x.width)
    root = tape.tensor(f"{name} inverse root", x.rows, scan.groups, FP32_BYTES)
    saved = x, root
    forward = elementwise(name, size, size + root.num_bytes, saves=saved, family=family)
    sizes = 2 * size + root.num_bytes, size
    backward = gradient(name, *sizes, reads=saved, family=family)
    return tape.record(name, (x,), y, (forward,), (backward,), parameters=(Parameter(x.width),))

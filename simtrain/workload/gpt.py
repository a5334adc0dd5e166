"""The blocks of a transformer; by default the paper's GPT (Figures 2 to 6).

Grouped queries: Ainslie et al. 2023; gated MLPs: Shazeer 2020; RMS norms: Zhang and Sennrich 2019;
squared ReLU: So et al. 2021.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from simtrain.base.values import dataclass, replace
from simtrain.errors import InputError
from simtrain.scenario import Scenario
from simtrain.scenario.model import (
    ATTENTION,
    CANONICAL_PARTS,
    EXPERTS,
    MAMBA,
    MLP,
    Activation,
    Experts,
    LatentAttention,
    Lora,
    Mamba,
    Model,
    Normalization,
    ParallelAttentionMlp,
)
from simtrain.workload.blocks import (
    activation,
    adapted_column,
    adapted_row,
    add,
    add_adapter,
    attention,
    column_linears,
    latent_attention,
    norm,
)
from simtrain.workload.blocks.linear import AddAdapter
from simtrain.workload.chunk import Chunk
from simtrain.workload.hashing import hashed_once
from simtrain.workload.model_ends import NORMS, Embedding, FinalNorm, Head, TokenPrediction
from simtrain.workload.ops import Tensor
from simtrain.workload.tape import Block, Microbatch, Tape, record

# Most models lack these blocks: their modules are imported when a model has them.
if TYPE_CHECKING:
    from simtrain.workload.blocks.router import ExpertMlp

# Layers of hybrid models: Mamba-2, attention, an MLP or experts, each alone.
#
# Source: Megatron-Core's `HybridStack` (core/models/hybrid/hybrid_block.py), `MambaLayer`
# (core/ssm/mamba_layer.py) and `MLPLayer`.


@dataclass(frozen=True, slots=True)
class Sublayer:
    """The attention of a transformer layer alone, or its MLP or experts."""

    layer: TransformerLayer
    is_attention: bool
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        layer = self.layer
        return (layer.with_attention if self.is_attention else layer.with_mlp)(tape, x)


@dataclass(frozen=True, slots=True)
class MambaLayer:
    """A Mamba-2 layer: a norm, the mixer, and dropout with the residual.

    Args:
        mamba: sizes of the mixer, before tensor parallelism.
        heads: of the mixer.
        normalization: kind of the norm before the mixer.
        hidden_dropout: whether there is dropout.
        in_bf16: products stay in bf16 in a model in fp8.
        is_unit: as in `tape.Block`.
    """

    mamba: Mamba
    heads: int
    normalization: Normalization = "rms_norm"
    hidden_dropout: bool = False
    in_bf16: bool = False
    is_unit: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        from simtrain.workload.blocks.mamba import mamba_mixer

        if self.in_bf16:
            tape.microbatch = replace(tape.microbatch, fp8_recipe="")
        name = f"Mamba {NORMS[self.normalization]}"
        y = norm(tape, x, name, self.normalization, feeds_products=True)
        y = mamba_mixer(tape, y, self.mamba, self.heads)
        return add(tape, (y,), x, "Mamba", drops_out=self.hidden_dropout)


@functools.lru_cache(maxsize=1024)
def hybrid_layers(
    model: Model, dense: TransformerLayer, with_experts: TransformerLayer, in_bf16: tuple[int, int]
) -> tuple[tuple[Block, int], ...]:
    """Return runs of equal layers, one layer for each letter of the model's pattern.

    `in_bf16` are numbers of layers at the start and at the end of the model that stay in bf16.
    """
    pattern, (first, last) = model.layer_pattern or "", in_bf16
    kinds = _kinds(model, dense, with_experts, in_bf16=False)
    kept = _kinds(model, dense.kept_in_bf16(), with_experts.kept_in_bf16(), in_bf16=True)
    ends = len(pattern) - last
    layers = [
        (kept if number < first or number >= ends else kinds)[letter]
        for number, letter in enumerate(pattern)
    ]
    return tuple((layer, len([*run])) for layer, run in itertools.groupby(layers))


def _kinds(
    model: Model, dense: TransformerLayer, with_experts: TransformerLayer, *, in_bf16: bool
) -> dict[str, Block]:
    kinds: dict[str, Block] = {
        ATTENTION: Sublayer(dense, is_attention=True),
        MLP: Sublayer(dense, is_attention=False),
        EXPERTS: Sublayer(with_experts, is_attention=False),
    }
    if mamba := model.mamba:
        drops_out, heads = model.hidden_dropout > 0, model.num_mamba_heads
        kinds[MAMBA] = MambaLayer(mamba, heads, model.normalization, drops_out, in_bf16)
    return kinds


# Checks of layers that a user wrote in Python.


def check_own_layers(layers: Sequence[Block], num_layers: int, microbatch: Microbatch) -> None:
    """Check that layers can replace the `num_layers` layers of a model.

    Raises:
        InputError: not a list of blocks, another number of layers, or a layer whose output does not
            have the shape of its input (E505).
    """
    fix = "pass a list of objects with is_unit and forward(tape, x): simtrain show extend"
    if not isinstance(layers, Sequence) or isinstance(layers, str):
        raise InputError.of("E505", f"layers is a {type(layers).__name__}, not a list", fix=fix)
    for place, layer in enumerate(layers):
        if problem := _wrong_block(layer):
            raise InputError.of("E505", f"layers[{place}] is {problem}", fix=fix)
    number = sum(layer.is_unit for layer in layers)
    if number != num_layers:
        message = f"layers has {number} layers, but model.num_layers is {num_layers}"
        change = f", or set model.num_layers to {number}" if number else ""
        raise InputError.of("E505", message, fix=f"pass {num_layers} layers{change}")
    for layer in dict.fromkeys(layers):
        _check_output(layer, layers.index(layer), microbatch)


def _wrong_block(layer: Any) -> str:
    missing = [name for name in ("is_unit", "forward") if not hasattr(layer, name)]
    kind = type(layer).__name__
    if isinstance(layer, type):
        return "a class, not an object"
    if missing:
        return f"a {kind} without {' and '.join(missing)}"
    # Equal layers share their recorded ops.
    return (
        ""
        if isinstance(layer, Hashable)
        else f"a {kind} without a hash; write @dataclass(frozen=True)"
    )


def _check_output(layer: Block, place: int, microbatch: Microbatch) -> None:
    """Check that a layer returns hidden states, which the next layer or stage receives."""
    recording = record(layer, microbatch)
    block_input, result = recording.block_input, recording.block_output
    if isinstance(result, Tensor):
        if (result.rows, result.width) == (block_input.rows, block_input.width):
            return
        returned = f"a tensor of {result.rows} x {result.width}"
    else:
        returned = "nothing" if result is None else f"an object of type {type(result).__name__}"
    message = f"forward of layers[{place}] returns {returned}"
    fix = f"return a tensor of {block_input.rows} x {block_input.width}, the shape of its input"
    raise InputError.of("E505", message, fix=fix)


_ACTIVATIONS = {"gelu": "GeLU", "swiglu": "SwiGLU", "geglu": "GeGLU", "squared_relu": "ReLU²"}
_GATED = ("swiglu", "geglu")
LAYERNORM, MLP_REGION, MOE = "layernorm", "mlp", "moe"
"""Names of regions: the norm before attention or MLP, a dense MLP, experts with their router."""
_READERS = {
    "attention": ("linear_qkv",),
    "MLP": ("linear_fc1",),
    "one_norm": ("linear_qkv", "linear_fc1"),
}
"""Modules that read the output of a norm, by its label or by the order of attention and MLP."""
_Branch = Callable[[Tape, Tensor], Tensor]


@hashed_once
@dataclass(frozen=True)
class TransformerLayer:
    """Attention and MLP, each with a norm before and dropout after, or both in parallel.

    Sizes are those of the whole layer, before tensor parallelism.

    Args:
        hidden: hidden size.
        heads: query heads.
        ffn: hidden size of the MLP.
        fused_attention: attention is one kernel.
        is_unit: as in `tape.Block`.
        groups: key heads and value heads; None for `heads`.
        channels: channels of a head; None for hidden / heads.
        hidden_dropout, attention_dropout: whether there is dropout.
        window: attention window in tokens; None without one.
        experts: replace the MLP.
        in_bf16: products stay in bf16 in a model in fp8 or fp4.
        lora: adapters; None without.
        input_has_gradient: as in `tape.Block`.

    The other arguments are fields of the scenario's model.
    """

    hidden: int
    heads: int
    ffn: int
    fused_attention: bool = False
    is_unit: bool = True
    groups: int | None = None
    channels: int | None = None
    activation: Activation = "gelu"
    normalization: Normalization = "layer_norm"
    qk_norm: bool = False
    rope: bool = False
    biases: bool = True
    qkv_biases: bool = True
    hidden_dropout: bool = True
    attention_dropout: bool = True
    window: int | None = None
    latent_attention: LatentAttention | None = None
    parallel_attention_mlp: ParallelAttentionMlp = "none"
    experts: ExpertMlp | None = None
    in_bf16: bool = False
    lora: Lora | None = None
    input_has_gradient: bool = True

    def forward(self, tape: Tape, x: Tensor) -> Tensor:
        if self.parallel_attention_mlp != "none":
            return self._side_by_side(tape, x)
        return self.with_mlp(tape, self.with_attention(tape, x))

    def with_attention(self, tape: Tape, x: Tensor) -> Tensor:
        self._keep_bf16(tape)
        is_dense = self.latent_attention is None
        with tape.capturing("attn"):
            y = self._after_norm(tape, x, "attention", self._attention, feeds_products=is_dense)
            return self._add(tape, (y,), x, "attention")

    def with_mlp(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the MLP or the experts with their norm and residual."""
        if self.experts:
            return self._mlp_and_sum(tape, x)
        with tape.capturing("mlp"):
            return self._mlp_and_sum(tape, x)

    def _mlp_and_sum(self, tape: Tape, x: Tensor) -> Tensor:
        self._keep_bf16(tape)
        feeds_mlp = self.experts is None
        if feeds_mlp and _norm_is_in_linear(tape):
            with tape.region(MLP_REGION):
                y = self._after_norm(tape, x, "MLP", self._products, feeds_products=True)
        else:
            y = self._after_norm(tape, x, "MLP", self._mlp, feeds_products=feeds_mlp)
        return self._add(tape, (y,), x, "MLP")

    def kept_in_bf16(self) -> TransformerLayer:
        experts = self.experts and replace(self.experts, fp8_dispatch=False)
        return replace(self, experts=experts, in_bf16=True)

    def _keep_bf16(self, tape: Tape) -> None:
        if self.in_bf16:
            tape.microbatch = replace(tape.microbatch, fp8_recipe="")

    def _side_by_side(self, tape: Tape, x: Tensor) -> Tensor:
        """Record attention and MLP in parallel, from the same input."""
        self._keep_bf16(tape)
        shared = self.parallel_attention_mlp == "one_norm"
        feeds_mlp = self.experts is None
        feeds_attention = self.latent_attention is None and (feeds_mlp or not shared)
        normed = self._norm(tape, x, "attention", feeds_products=feeds_attention)
        y = self._attention(tape, normed)
        if not shared:
            normed = self._norm(tape, x, "MLP", feeds_products=feeds_mlp)
        return self._add(tape, (y, self._mlp(tape, normed)), x, "attention and MLP")

    def _after_norm(
        self, tape: Tape, x: Tensor, label: str, branch: _Branch, *, feeds_products: bool
    ) -> Tensor:
        """Record a norm and a branch. The norm is a region unless a linear layer contains it."""
        if feeds_products and _norm_is_in_linear(tape):
            return branch(tape, self._norm(tape, x, label, feeds_products=True))
        with tape.region(LAYERNORM) as region:
            normed = self._norm(tape, x, label, feeds_products=feeds_products)
        y = region.discarded_after = branch(tape, normed)
        return y

    def _norm(self, tape: Tape, x: Tensor, label: str, *, feeds_products: bool) -> Tensor:
        name = f"{label} {NORMS[self.normalization]}"
        # Adapters read the output before a cast.
        readers = _READERS.get(self.parallel_attention_mlp) or _READERS[label]
        casts = feeds_products and not self._adapts(readers)
        before_router = self.experts is not None and label == "MLP"
        with tape.capturing("moe_router") if before_router else nullcontext():
            return norm(tape, x, name, self.normalization, feeds_products=casts)

    def _adapts(self, modules: tuple[str, ...]) -> bool:
        return self.lora is not None and any(map(self.lora.adapts, modules))

    def _attention(self, tape: Tape, x: Tensor) -> Tensor:
        if self.latent_attention is None:
            context = self._heads(tape, x)
        else:
            context = latent_attention(
                tape,
                x,
                self.heads,
                self.latent_attention,
                latent_norm=self.normalization if self.qk_norm else None,
                fused=self.fused_attention,
                drops_out=self.attention_dropout,
                window=self.window,
            )
        of_row = "projection", "attention", self.lora, "linear_proj"
        return adapted_row(tape, context, *of_row, bias=self.biases)

    def _heads(self, tape: Tape, x: Tensor) -> Tensor:
        groups = self.groups or self.heads
        channels = self.channels or self.hidden // self.heads
        qkv: Tensor | tuple[Tensor, Tensor, Tensor]
        if tape.microbatch.kernels.separate_projections:
            sizes = {"query": self.heads, "key": groups, "value": groups}
            columns = {name: number * channels for name, number in sizes.items()}
            biases = dict.fromkeys(columns, self.qkv_biases)
            adds = self._adapts_each(tape, "linear_qkv", columns)
            each = column_linears(tape, x, columns, "attention", biases=biases, adapt=adds)
            query, key, value = each
            qkv = query, key, value
        else:
            parts = {"linear_q": self.heads, "linear_k": groups, "linear_v": groups}
            parts = {module: number * channels for module, number in parts.items()}
            bias = self.qkv_biases
            of_qkv = parts, "QKV", "attention", self.lora, "linear_qkv"
            qkv = adapted_column(tape, x, *of_qkv, bias=bias)
        return attention(
            tape,
            qkv,
            channels,
            groups // tape.microbatch.tensor.num_ranks,
            fused=self.fused_attention,
            drops_out=self.attention_dropout,
            head_norm=self.normalization if self.qk_norm else None,
            rope=self.rope,
            window=self.window,
        )

    def _mlp(self, tape: Tape, x: Tensor) -> Tensor:
        if self.experts:
            from simtrain.workload.blocks.experts import experts

            with tape.region(MOE):
                return experts(tape, x, self.experts)
        with tape.region(MLP_REGION):
            return self._products(tape, x)

    def _products(self, tape: Tape, x: Tensor) -> Tensor:
        """Record the two linear layers of the MLP and the activation between them."""
        gated, name = self.activation in _GATED, _ACTIVATIONS[self.activation]
        of_row = "MLP", self.lora, "linear_fc2"
        if gated and tape.microbatch.kernels.separate_projections:
            columns = {"gate": self.ffn, "up": self.ffn}
            biases = dict.fromkeys(columns, self.biases)
            adds = self._adapts_each(tape, "linear_fc1", columns)
            gate, values = column_linears(tape, x, columns, "MLP", biases=biases, adapt=adds)
            y = activation(tape, (gate, values), name, gated=True, output_name=f"{name} output")
            return adapted_row(tape, y, "down", *of_row, bias=self.biases)
        up, down = ("gate and up", "down") if gated else ("h→4h", "4h→h")
        modules = ("linear_fc1_gate", "linear_fc1_up") if gated else ("linear_fc1",)
        y = adapted_column(
            tape,
            x,
            dict.fromkeys(modules, self.ffn),
            up,
            "MLP",
            self.lora,
            "linear_fc1",
            bias=self.biases,
            skip_bias_add=True,
            output_name=f"{name} input",
        )
        biased = up if self.biases else ""
        kernel = f"bias and {name}" if biased else name
        y = activation(
            tape,
            y,
            kernel,
            gated=gated,
            squared=self.activation == "squared_relu",
            biased=biased,
            output_name=f"{name} output",
        )
        return adapted_row(tape, y, down, *of_row, bias=self.biases)

    def _adapts_each(self, tape: Tape, module: str, names: Iterable[str]) -> AddAdapter | None:
        """Return what records adapters of separate projections; None if none has one."""
        lora = self.lora
        if lora is None or not lora.adapts(module):
            return None
        parts = zip(names, CANONICAL_PARTS[module], strict=True)
        adapted = {name for name, part in parts if {module, part} & {*lora.modules}}
        return lambda x, y, name: add_adapter(tape, x, y, name, lora) if name in adapted else y

    def _add(
        self, tape: Tape, branches: tuple[Tensor, ...], residual: Tensor, label: str
    ) -> Tensor:
        how = {"bias": self.biases, "drops_out": self.hidden_dropout}
        return add(tape, branches, residual, label, **how)


def _norm_is_in_linear(tape: Tape) -> bool:
    return tape.microbatch.kernels.norm_in_linear or bool(tape.microbatch.fp8_recipe)


def gpt_blocks(scenario: Scenario) -> Chunk:
    """Return all blocks of a scenario's model, first to last."""
    model = scenario.model
    layer = TransformerLayer(
        model.hidden_size,
        model.num_attention_heads,
        model.ffn_hidden_size,
        fused_attention=scenario.attention_backend == "fused",
        groups=model.num_query_groups,
        channels=model.kv_channels,
        activation=model.activation,
        normalization=model.normalization,
        qk_norm=model.qk_norm,
        rope=model.position_embedding == "rope",
        biases=model.biases,
        qkv_biases=model.qkv_biases,
        hidden_dropout=model.hidden_dropout > 0,
        attention_dropout=model.attention_dropout > 0,
        window=model.attention_window,
        latent_attention=model.latent_attention,
        parallel_attention_mlp=model.parallel_attention_mlp,
        lora=model.lora,
    )
    embedding = Embedding(
        model.vocab_size,
        model.shares_embedding,
        learned_positions=model.position_embedding == "learned",
        drops_out=model.hidden_dropout > 0,
    )
    layers: _Runs = ((layer, model.num_layers),)
    precision, every = scenario.precision, model.full_attention_every
    in_bf16 = precision.first_layers_bf16, precision.last_layers_bf16
    mlp = _expert_mlp(scenario, model.experts) if model.experts else None
    if mlp is not None or every is not None or any(in_bf16):
        layers = _layers(layer, model.num_layers, mlp, every, in_bf16)
    if model.lora and not _first_layer_has_gradient(scenario):
        layers = _without_first_gradient(layers)
    normalization, number = model.normalization, model.mtp_num_layers
    head = Head(
        model.vocab_size,
        model.tied_embeddings,
        scenario.in_place_cross_entropy,
        normalization=None if number else normalization,
        num_predictions=number,
    )
    if model.layer_pattern is not None:
        with_experts = replace(layer, experts=mlp)
        return _blocks(embedding, hybrid_layers(model, layer, with_experts, in_bf16), head)
    if not number:
        return _blocks(embedding, layers, head)
    # Megatron-LM takes the last layer's kind for these (get_gpt_mtp_block_spec), but casts their
    # operands: only the layers of the model have numbers (is_first_last_bf16_layer).
    last = replace(layers[-1][0], in_bf16=False)
    prediction = TokenPrediction(number, last, embedding, normalization)
    return _blocks(embedding, layers, FinalNorm(normalization), prediction, head)


_Runs = tuple[tuple[TransformerLayer, int], ...]


@functools.lru_cache(maxsize=1024)
def _blocks(
    embedding: Embedding,
    layers: tuple[tuple[Block, int], ...],
    *ends: FinalNorm | TokenPrediction | Head,
) -> Chunk:
    return Chunk(((embedding, 1), *layers, *((end, 1) for end in ends)))


@functools.lru_cache(maxsize=1024)
def _layers(
    dense: TransformerLayer,
    num_layers: int,
    mlp: ExpertMlp | None,
    full_attention_every: int | None,
    in_bf16: tuple[int, int],
) -> _Runs:
    """Return runs of equal layers.

    `in_bf16` are the numbers of layers in bf16 at the start and at the end of the model.
    """
    first, last = in_bf16

    def kind(layer: int) -> tuple[bool, bool, bool]:
        has_experts = mlp is not None and mlp.section.has_layer(layer)
        is_full = full_attention_every is not None and (layer + 1) % full_attention_every == 0
        return has_experts, is_full, layer < first or layer >= num_layers - last

    layers: _Runs = ()
    for (has_experts, is_full, wide), run in itertools.groupby(range(num_layers), kind):
        experts = mlp if has_experts else None
        window = None if is_full else dense.window
        layer = replace(dense, experts=experts, window=window)
        layers += ((layer.kept_in_bf16() if wide else layer, len([*run])),)
    return layers


def _first_layer_has_gradient(scenario: Scenario) -> bool:
    """Whether the input of the first layer needs a gradient although the embedding is frozen.

    With full recompute it does: a checkpoint without such an input has no backward pass
    (Megatron-Bridge, peft/recompute.py). So do the hidden states that a stage receives.
    """
    return scenario.recompute.strategy == "full" or scenario.chunk_contents.layers[0] == 0


def _without_first_gradient(layers: _Runs) -> _Runs:
    (first, times), *others = layers
    runs = (replace(first, input_has_gradient=False), 1), (first, times - 1), *others
    return tuple((layer, number) for layer, number in runs if number)


def _expert_mlp(scenario: Scenario, section: Experts) -> ExpertMlp:
    from simtrain.workload.blocks.router import ExpertMlp

    activation = scenario.model.activation
    return ExpertMlp(
        section,
        _ACTIVATIONS[activation],
        activation in _GATED,
        scenario.expert_dispatch,
        scenario.overlap.shared_expert,
        scenario.precision.fp8_dispatch,
        scenario.model.lora,
    )

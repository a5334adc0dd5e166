"""Any legal layer of attention with an MLP or experts, and its closed forms by hand."""

from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from simtrain.scenario import Scenario
from tests.helpers.toys import scenario_with

CHOICES: dict[str, list[Any]] = {
    "activation": ["gelu", "swiglu", "geglu", "squared_relu"],
    "normalization": ["layer_norm", "rms_norm"],
    "qk_norm": [False, True],
    "position_embedding": ["learned", "rope", "none"],
    "biases": [False, True],
    "qkv_biases": [False, True],
    "hidden_dropout": [0, 0.0, 0.1, 0.5],
    "attention_dropout": [0, 0.2],
    "tied_embeddings": [False, True],
    "parallel_attention_mlp": ["none", "one_norm", "two_norms"],
}
LATENT, EXPERTS = "latent attention", "experts"


@st.composite
def layers(draw: st.DrawFn, kinds: tuple[str, ...] = (LATENT, EXPERTS)) -> Scenario:
    """Draw one layer of any legal model on any number of tensor-parallel ranks.

    Some have latent attention and some have experts, if `kinds` has them.
    """
    t = draw(st.sampled_from([1, 2, 4]))
    groups = t * draw(st.integers(1, 3))
    has_latent, has_experts = (kind in kinds and draw(st.booleans()) for kind in (LATENT, EXPERTS))
    model: dict[str, Any] = {
        "num_layers": 1,
        "hidden_size": t * draw(st.integers(1, 100)),
        "num_attention_heads": groups if has_latent else groups * draw(st.integers(1, 4)),
        "num_query_groups": groups,
        "kv_channels": 8 * draw(st.integers(1, 32)),
        "ffn_hidden_size": t * draw(st.integers(1, 100)),
        "seq_length": t * draw(st.integers(1, 50)),
        "vocab_size": 128 * t,
    }
    split: dict[str, Any] = {"tensor": t}
    split["sequence_parallel"] = t > 1 and (has_experts or draw(st.booleans()))
    for field, values in CHOICES.items():
        if draw(st.booleans()):
            model[field] = draw(st.sampled_from(values))
    if has_latent:
        del model["num_query_groups"], model["kv_channels"]
        model |= {"latent_attention": draw(_latent_sizes()), "qkv_biases": False}
    if has_experts:
        del model["ffn_hidden_size"]
        model |= {"biases": False, "qkv_biases": False, "parallel_attention_mlp": "none"}
        split |= draw(_expert_split(t))
        model["experts"] = draw(_expert_sizes(t, split))
    return scenario_with(
        model,
        batch={"micro": (micro := draw(st.integers(1, 3))), "global": 8 * micro},
        parallelism=split,
        attention_backend=draw(st.sampled_from(["fused", "unfused"])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
    )


@st.composite
def _latent_sizes(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "q_lora_rank": draw(st.none() | st.integers(1, 60)),
        "kv_lora_rank": draw(st.integers(1, 60)),
        "qk_head_dim": 8 * draw(st.integers(1, 6)),
        "qk_pos_emb_head_dim": 8 * draw(st.integers(1, 4)),
        "v_head_dim": 8 * draw(st.integers(1, 6)),
    }


@st.composite
def _expert_split(draw: st.DrawFn, t: int) -> dict[str, Any]:
    split = {"data": 8, "expert": draw(st.sampled_from([1, 2, 4]))}
    split["expert_tensor"] = draw(st.sampled_from([1, t]))
    return split | {"expert_dispatch": draw(st.sampled_from(["all_to_all", "all_gather"]))}


@st.composite
def _expert_sizes(draw: st.DrawFn, t: int, split: dict[str, Any]) -> dict[str, Any]:
    drops = split["expert_dispatch"] == "all_to_all" and draw(st.booleans())
    return {
        "num": split["expert"] * draw(st.integers(2, 4)),
        "top_k": draw(st.integers(1, 2)),
        "ffn_hidden_size": t * draw(st.integers(1, 60)),
        "shared_ffn_hidden_size": t * draw(st.integers(0, 20)),
        "router_dtype": draw(st.sampled_from(["bf16", "fp32"])),
        "capacity_factor": draw(st.sampled_from([0.5, 1.25])) if drops else None,
    }


class LayerByHand:
    """Closed forms of a layer on one rank, from the sizes of its scenario alone."""

    def __init__(self, scenario: Scenario) -> None:
        m, split = scenario.model, scenario.parallelism
        self.scenario, self.model, self.split, self.t = scenario, m, split, split.tensor
        self.tokens = m.seq_length * scenario.batch.micro
        self.parts = split.tensor if split.sequence_parallel else 1
        self.local = self.tokens // self.parts
        self.heads, self.latent, self.experts = (
            m.num_attention_heads,
            m.latent_attention,
            m.experts,
        )
        self.gated = m.activation in ("swiglu", "geglu")
        self.matrices = 3 if self.gated else 2
        self.is_fused = scenario.attention_backend == "fused"
        sizes = self.latent
        self.query, self.value = m.kv_channels, m.kv_channels
        if sizes:
            self.query = sizes.qk_head_dim + sizes.qk_pos_emb_head_dim
            self.value = sizes.v_head_dim

    @property
    def whole_weights(self) -> int:
        """Elements of the matrices that every tensor-parallel rank holds."""
        m, sizes, weights = self.model, self.latent, 0
        if sizes:
            ranks = sizes.kv_lora_rank + sizes.qk_pos_emb_head_dim + (sizes.q_lora_rank or 0)
            weights += m.hidden_size * ranks
        return weights + (m.hidden_size * self.experts.num if self.experts else 0)

    @property
    def divided_weights(self) -> int:
        """Elements of the matrices that tensor-parallel ranks divide, without routed experts."""
        m, sizes, h, a = self.model, self.latent, self.model.hidden_size, self.heads
        attention = h * 2 * (a + m.num_query_groups) * self.query
        if sizes:
            attention = (sizes.q_lora_rank or h) * a * self.query + a * self.value * h
            attention += sizes.kv_lora_rank * a * (sizes.qk_head_dim + self.value)
        ffn = self.experts.shared_ffn_hidden_size if self.experts else m.ffn_hidden_size
        return attention + self.matrices * h * ffn

    @property
    def expert_weights(self) -> Fraction:
        """Elements of the matrices of routed experts on a rank."""
        if not self.experts:
            return Fraction(0)
        of_one = self.matrices * self.model.hidden_size * self.experts.ffn_hidden_size
        ranks = self.split.expert * self.split.ranks_of_expert
        return Fraction(self.experts.num * of_one, ranks)

    @property
    def vectors(self) -> tuple[int, int]:
        """Elements of divided biases, and of norms and biases that every rank holds."""
        m, sizes = self.model, self.latent
        outputs = 0 if sizes else (self.heads + 2 * m.num_query_groups) * m.kv_channels
        up = m.ffn_hidden_size * (2 if self.gated else 1)
        divided = (outputs if m.qkv_biases else 0) + (up if m.biases else 0)
        norms = 1 if m.parallel_attention_mlp == "one_norm" else 2
        inner = sizes.kv_lora_rank + (sizes.q_lora_rank or 0) if sizes else 2 * m.kv_channels
        of_norm = 2 if m.normalization == "layer_norm" else 1
        whole = of_norm * (norms * m.hidden_size + (inner if m.qk_norm else 0))
        return divided, whole + (2 * m.hidden_size if m.biases else 0)

    @property
    def parameters(self) -> Fraction:
        divided, whole = self.vectors
        in_parts = Fraction(self.divided_weights + divided, self.t)
        return in_parts + whole + self.whole_weights + self.expert_weights

    @property
    def sent_rows(self) -> int:
        """Rows that a rank sends to experts: with a capacity, as many for each expert."""
        experts = self.experts
        assert experts
        rows = self.local * experts.top_k
        if experts.capacity_factor is None:
            return rows
        percent = int(100 * experts.capacity_factor)
        return experts.num * -(-rows * percent // (100 * experts.num))

    @property
    def linear_flops(self) -> Fraction:
        """2 FLOPs for each weight and token that uses it."""
        flops = 2 * self.tokens * Fraction(self.divided_weights, self.t)
        flops += 2 * self.local * self.whole_weights
        if self.experts:
            of_one = self.matrices * self.model.hidden_size * self.experts.ffn_hidden_size
            flops += 2 * self.sent_rows * of_one
        return flops

    @property
    def score_flops(self) -> tuple[Fraction, Fraction]:
        """FLOPs of products with scores, forward and backward: fused kernels compute half."""
        scores = Fraction(self.tokens * self.model.seq_length * self.heads, self.t)
        both = self.query + self.value
        if self.is_fused:
            return scores * both, scores * (3 * self.query + 2 * self.value)
        return 2 * scores * both, 4 * scores * both

    @property
    def forward_flops(self) -> Fraction:
        return self.linear_flops + self.score_flops[0]

    @property
    def backward_flops(self) -> Fraction:
        """Twice the forward FLOPs of linear layers, and what is recomputed."""
        repeated = {"none": Fraction(0), "selective": self.score_flops[0]}
        again = repeated.get(self.scenario.recompute.strategy, self.forward_flops)
        return 2 * self.linear_flops + self.score_flops[1] + again

    @property
    def saved_bytes(self) -> Fraction:
        strategy = self.scenario.recompute.strategy
        if strategy == "full":
            return Fraction(2 * self.local * self.model.hidden_size)
        core = self._core_bytes if strategy == "none" else Fraction(0)
        return self._norm_bytes + self._attention_bytes + core + self._mlp_bytes

    @property
    def _norm_bytes(self) -> int:
        """Inputs and outputs of norms, and dropout masks. If attention and MLP are parallel, norms
        share the layer's input, and there is one mask.
        """
        kept, masks = {"none": (4, 2), "one_norm": (2, 1), "two_norms": (3, 1)}[
            self.model.parallel_attention_mlp
        ]
        return (
            self.local
            * self.model.hidden_size
            * (2 * kept + (masks if self.model.hidden_dropout else 0))
        )

    @property
    def _attention_bytes(self) -> Fraction:
        """Latents and their norms; queries, keys, values and the output; inputs of head norms."""
        m, sizes = self.model, self.latent
        if sizes:
            ranks = sizes.kv_lora_rank + (sizes.q_lora_rank or 0)
            latents = 2 * self.local * ranks * (2 if m.qk_norm else 1)
            channels = 2 * self.heads * (self.query + self.value)
            return latents + Fraction(2 * self.tokens * channels, self.t)
        both = (self.heads + m.num_query_groups) * self.query
        return Fraction(2 * self.tokens * (2 + m.qk_norm) * both, self.t)

    @property
    def _core_bytes(self) -> Fraction:
        """A number per row of scores; or scores, and keys and values repeated for each head."""
        m, rows = self.model, Fraction(self.tokens * self.heads, self.t)
        if self.is_fused:
            return 4 * rows
        repeats = not self.latent and m.num_query_groups < self.heads
        scores = rows * m.seq_length * (5 if m.attention_dropout else 2)
        return scores + (4 * rows * self.query if repeats else 0)

    @property
    def _mlp_bytes(self) -> Fraction:
        """Input and output of the activation; of experts also what router and dispatch save."""
        m, experts, split = self.model, self.experts, self.split
        if not experts:
            return Fraction(2 * self.tokens * m.ffn_hidden_size * self.matrices, self.t)
        router = 4 if experts.router_dtype == "fp32" else 2
        scores = self.local * (experts.num * (router + 4 + 1) + experts.top_k * (4 + 8))
        rows = self.sent_rows * split.ranks_of_expert
        hidden = Fraction(self.matrices * experts.ffn_hidden_size, split.ranks_of_expert)
        order = 8 * (rows if split.expert_dispatch == "all_gather" else self.sent_rows)
        shared = 2 * self.matrices * self.tokens * experts.shared_ffn_hidden_size
        of_rows = rows * (2 * m.hidden_size + 2 * hidden + router)
        return scores + of_rows + order + Fraction(shared, self.t)

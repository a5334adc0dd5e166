"""Import the arguments of Megatron-LM.

Defaults follow Megatron-LM's arguments.py and transformer_config.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from simtrain.errors import InputError, Location
from simtrain.importing.draft import DEFAULT, Draft, padded_vocabulary
from simtrain.importing.megatron_arguments import DETAILS, NOT_MODELLED
from simtrain.importing.megatron_data_parallel import set_memory, set_overlap
from simtrain.importing.megatron_experts import set_expert_parallelism, set_mlp
from simtrain.importing.megatron_model import set_attention
from simtrain.importing.megatron_precision import set_precision
from simtrain.importing.megatron_recompute import set_norms, set_recompute
from simtrain.importing.megatron_software import set_software
from simtrain.importing.megatron_userbuffers import set_userbuffers
from simtrain.importing.megatron_values import (
    CONTEXT_COMMUNICATION,
    Reader,
    converted,
    listed,
    wrong,
)
from simtrain.importing.shell import unknown_name
from simtrain.importing.source import TEXT, Argument, Source, read_source
from simtrain.scenario import Scenario
from simtrain.scenario.pipeline_layout import chunks_of_layout

_REQUIRED = {
    "model.num_layers": "--num-layers",
    "model.hidden_size": "--hidden-size",
    "model.num_attention_heads": "--num-attention-heads",
    "model.seq_length": "--seq-length",
}
_NOT_WITH_LAYOUT = (
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
)
_NORMS = {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm"}
_POSITIONS = {"learned_absolute": "learned", "rope": "rope", "none": "none"}
_BACKENDS = {"auto": "fused", "flash": "fused", "fused": "fused", "unfused": "unfused"}
_BACKENDS["local"] = "unfused"
# The vocabulary in the files of GPT2BPETokenizer.
_GPT2_TOKENS = 50257


def import_megatron(text_or_file: str, overrides: Iterable[str] = ()) -> tuple[Scenario, str]:
    """Import Megatron-LM's arguments; return the scenario and the text of its file.

    Args:
        text_or_file: the arguments, or the path of an argument file, a shell script or a log.
        overrides: fields to set, such as "cluster=h100_sxm".

    Raises:
        InputError: unreadable sources, unknown arguments, and values and combinations that
            Megatron-LM refuses.
    """
    mapping = _Mapping(read_source(text_or_file), tuple(overrides))
    return mapping.draft.finished(_REQUIRED)


class _Mapping(Reader):
    """Maps arguments to the fields of a scenario, section by section."""

    def __init__(self, source: Source, overrides: tuple[str, ...]) -> None:
        super().__init__(source)
        where = "" if source.file == TEXT else f" in {source.file}"
        self.draft = Draft(source.file, f"Megatron-LM's arguments{where}", overrides)
        self.tensor = self._split("parallelism.tensor", "tensor_model_parallel_size")
        self.pipeline = self._split("parallelism.pipeline", "pipeline_model_parallel_size")
        self.context = self._split("parallelism.context", "context_parallel_size")
        self.layers = self.integer("num_layers") or self.integer("encoder_num_layers")
        self._model()
        self._vocabulary()
        self._parallelism()
        self._stages()
        data = self._replicas()
        self._batch(data)
        set_recompute(self)
        set_memory(self, data)
        self._attention()
        set_software(self)
        set_norms(self)
        set_precision(self)
        self._overlap()
        set_expert_parallelism(self)
        if self.given("fp8"):
            needs_blackwell = self.draft.data["precision"].get("fp8_recipe") == "mxfp8"
            cluster, gpu = ("b200_sxm", "a B200") if needs_blackwell else ("h100_sxm", "an H100")
            comment = f"fp8 needs {gpu} or a later GPU; the GPU is not in the source"
            self.draft.set("cluster", cluster, comment)
        else:
            self.draft.set("cluster", Scenario.model_fields["cluster"].default, DEFAULT)
        self._notes()

    def _split(self, field: str, name: str) -> int:
        return self.draft.override(field) or self.integer(name) or 1

    def set(self, field: str, value: object, *names: str, otherwise: str = "") -> None:
        """Set a field from arguments, with their names and lines as comment."""
        comment = self.origin(*names, otherwise=otherwise or "default of Megatron-LM")
        self.draft.set(field, value, comment, self.place(*names))

    # ------------------------------------------------------------------------------- sections

    def _model(self) -> None:
        hidden, heads = self.integer("hidden_size"), self.integer("num_attention_heads")
        if self.layers is not None:
            self.set("model.num_layers", self.layers, self.first_given("num_layers"))
        if hidden is not None:
            self.set("model.hidden_size", hidden, "hidden_size")
        if heads is not None:
            self.set("model.num_attention_heads", heads, "num_attention_heads")
            groups = self.integer("num_query_groups") or 1
            names = ("group_query_attention", "num_query_groups")
            if self.flag("group_query_attention"):
                self.set("model.num_query_groups", groups, *names)
        is_latent = set_attention(self)
        if not is_latent and (channels := self.integer("kv_channels")):
            self.set("model.kv_channels", channels, "kv_channels")
        swiglu = self.flag("swiglu")
        if ffn := self.integer("ffn_hidden_size"):
            set_mlp(self, ffn, self.origin("ffn_hidden_size"))
        elif hidden is not None:
            # As in arguments.py: about as many parameters as a plain MLP, in multiples of 64.
            ffn = int((4 * hidden * 2 / 3) / 64) * 64 if swiglu else 4 * hidden
            set_mlp(
                self,
                ffn,
                "default with --swiglu: 8/3 h, rounded down to 64" if swiglu else "default: 4 h",
            )
        if seq_length := self.integer("seq_length") or self.integer("encoder_seq_length"):
            self.set("model.seq_length", seq_length, self.first_given("seq_length"))
        tied = not self.flag("untie_embeddings_and_output_weights")
        self.set("model.tied_embeddings", tied, "untie_embeddings_and_output_weights")
        squared = "squared_relu" if self.flag("squared_relu") else "gelu"
        self.set("model.activation", "swiglu" if swiglu else squared, "swiglu", "squared_relu")
        norm = self.choice("normalization", _NORMS, "LayerNorm")
        self.set("model.normalization", norm, "normalization")
        self.set("model.qk_norm", self.flag("qk_layernorm"), "qk_layernorm")
        rotary = self.flag("use_rotary_position_embeddings")
        self.positions = self.choice(
            "position_embedding_type", _POSITIONS, "rope" if rotary else "learned_absolute"
        )
        names = ("position_embedding_type", "use_rotary_position_embeddings")
        self.set("model.position_embedding", self.positions, *names)
        biases = self.flag("add_bias_linear", True)
        self.set("model.biases", biases, "add_bias_linear")
        qkv = not is_latent and (biases or self.flag("add_qkv_bias"))
        self.set("model.qkv_biases", qkv, "add_bias_linear", "add_qkv_bias")
        for name in ("hidden_dropout", "attention_dropout"):
            dropout = self.decimal(name)
            self.set(f"model.{name}", 0.1 if dropout is None else dropout, name)

    def _vocabulary(self) -> None:
        """Set the vocabulary, padded to a multiple of 128 x tensor as in Megatron-LM."""
        if padded := self.integer("padded_vocab_size"):
            self.set("model.vocab_size", padded, "padded_vocab_size")
            return
        tokens = self.integer("vocab_size")
        tokenizer = self.given("tokenizer_type")
        # GPT-2's tokenizer is the default of pretrain_gpt.py.
        kind = tokenizer.value if tokenizer else "GPT2BPETokenizer"
        if tokens is None and kind != "GPT2BPETokenizer":
            text = (
                "the vocabulary size of the tokenizer is not in the source: the scenario has 51200"
            )
            self.draft.note(kind, text, self.place("tokenizer_type"))
            self.draft.set("model.vocab_size", 51200, DEFAULT)
            return
        if tokens is None:
            tokens = _GPT2_TOKENS
        elif kind == "NullTokenizer":
            tokens += 1  # The end-of-document token (_NullTokenizer in tokenizer.py).
        unit = (self.integer("make_vocab_size_divisible_by") or 128) * self.tensor
        names = ("vocab_size", "tokenizer_type", "make_vocab_size_divisible_by")
        padded, comment = padded_vocabulary(tokens, unit)
        self.set("model.vocab_size", padded, *names, otherwise="default: GPT2BPETokenizer")
        self.draft.append("model.vocab_size", comment)

    def _parallelism(self) -> None:
        self.set("parallelism.tensor", self.tensor, "tensor_model_parallel_size")
        sequence = self.flag("sequence_parallel")
        if sequence and self.tensor == 1:
            comment = "Megatron-LM ignores --sequence-parallel without tensor parallelism"
            self.draft.set("parallelism.sequence_parallel", False, comment)
        else:
            self.set("parallelism.sequence_parallel", sequence, "sequence_parallel")
        self.set("parallelism.pipeline", self.pipeline, "pipeline_model_parallel_size")
        if self.context > 1:
            self._context()
        # Since 2023, every rank sends the whole output (p2p_communication.py); only logs of older
        # versions print this argument as on.
        scatters = self.source.is_printed and self.flag("scatter_gather_tensors_in_pipeline")
        self.draft.set(
            "parallelism.scatter_gather",
            scatters and not sequence,
            self.origin("scatter_gather_tensors_in_pipeline", otherwise="default since 2023"),
        )
        if self.flag("use_tp_pp_dp_mapping"):
            self.set("placement.order", "tp-cp-ep-pp-dp", "use_tp_pp_dp_mapping")

    def _context(self) -> None:
        """Set context parallelism; Megatron-LM can choose the communication for each layer."""
        self.set("parallelism.context", self.context, "context_parallel_size")
        way, sizes = self.known("cp_comm_type"), "hierarchical_context_parallel_sizes"
        names = {*listed(way)} if way else {"p2p"}
        if way and (len(names) > 1 or not names <= CONTEXT_COMMUNICATION.keys()):
            one_of = ", ".join(CONTEXT_COMMUNICATION)
            raise wrong(way, f"must be one of {one_of}, and the same for all layers")
        (communication,) = (CONTEXT_COMMUNICATION[name] for name in names)
        self.set("parallelism.context_communication", communication, "cp_comm_type")
        if communication == "a2a+p2p" and (given := self.known(sizes)):
            neighbours, *_ = [*listed(given), ""]
            if not neighbours.isdecimal():
                raise wrong(given, "must be a list of sizes")
            self.set("parallelism.context_a2a", int(neighbours), sizes)

    def _stages(self) -> None:
        """Set chunks and their layers, and the layers of the first and last stage."""
        if layout := self.known("pipeline_model_parallel_layout"):
            self._layout(layout)
            return
        chunks = self._chunks()
        ends = {
            "first": (
                "decoder_first_pipeline_num_layers",
                "account_for_embedding_in_pipeline_split",
            ),
            "last": ("decoder_last_pipeline_num_layers", "account_for_loss_in_pipeline_split"),
        }
        accounted = {end: self.flag(account) for end, (_, account) in ends.items()}
        slots = (self.layers or 0) + sum(accounted.values())
        for end, (own, account) in ends.items():
            field = f"parallelism.{end}_stage_layers"
            if layers := self.integer(own):
                self.set(field, layers, own)
            elif accounted[end] and chunks > 1:
                argument = self.source.arguments[account]
                text = "one chunk of the stage has one layer less"
                self.draft.note(argument.words, text, argument.place)
            elif accounted[end] and self.pipeline > 1 and slots % self.pipeline == 0:
                self.set(field, slots // self.pipeline - 1, account)
            elif accounted[end] and self.pipeline > 1:
                argument = self.source.arguments[account]
                text = f"leaves {slots} layers, with embedding and loss, for {self.pipeline} stages"
                raise wrong(argument, f"{text}: not a multiple")

    def _layout(self, layout: Argument) -> None:
        """Set the layout and its number of chunks; Megatron-LM refuses other settings with it."""
        for name in _NOT_WITH_LAYOUT:
            # Logs print flags that are off.
            if (other := self.given(name)) and other.value != "False":
                raise wrong(other, f"cannot be set together with {layout.spelled}")
        try:
            chunks = len(chunks_of_layout(layout.value))
        except ValueError as error:
            raise wrong(layout, f"must be a layout: {error}") from None
        self.set("parallelism.layout", layout.value, "pipeline_model_parallel_layout")
        if chunks >= 2 * self.pipeline:
            number = chunks // self.pipeline
            self.set("parallelism.interleave", number, "pipeline_model_parallel_layout")

    def _chunks(self) -> int:
        names = (
            "num_layers_per_virtual_pipeline_stage",
            "num_virtual_stages_per_pipeline_rank",
            "virtual_pipeline_model_parallel_size",
        )
        per_chunk, per_rank, printed = map(self.integer, names)
        chunks = per_rank or printed or 1
        if per_chunk and self.layers and not (per_rank or printed):
            chunks, rest = divmod(self.layers, self.pipeline * per_chunk)
            if rest or not chunks:
                argument = self.source.arguments[names[0]]
                raise wrong(argument, f"does not divide {self.layers} layers into equal chunks")
        if chunks > 1:
            self.set("parallelism.interleave", chunks, *names)
        return chunks

    def _replicas(self) -> int:
        """Set the data-parallel replicas, from the number of GPUs; return their number."""
        if data := self.draft.override("parallelism.data"):
            self.draft.set("parallelism.data", data, "--set")
            return data
        world, names = self._world()
        if world is None:
            data = self.integer("data_parallel_size") or 1
            self.set("parallelism.data", data, "data_parallel_size", otherwise=DEFAULT)
            return data
        ranks = self.tensor * self.pipeline * self.context
        if world % ranks:
            raise InputError.of(
                "E872",
                f"{world} GPUs ({names}) are not a multiple of tensor x pipeline x context "
                f"parallelism, {self.tensor} x {self.pipeline} x {self.context} = {ranks}",
                self._launcher_place(),
                f"launch a multiple of {ranks} GPUs, or add --set parallelism.data=...",
                f"each replica of the model has {ranks} ranks",
            )
        comment = f"{names}: {world} GPUs / {ranks} per replica"
        self.draft.set("parallelism.data", world // ranks, comment, self._launcher_place())
        return world // ranks

    def _launcher_place(self) -> Location | None:
        launcher = self.source.launcher.values()
        return next((one.place for one in launcher), self.place("world_size"))

    def _world(self) -> tuple[int | None, str]:
        if world := self.integer("world_size"):
            return world, self.origin("world_size")
        launcher = [self.source.launcher.get(name) for name in ("nproc_per_node", "nnodes")]
        counts = [
            converted(one, int, "an integer")
            for one in launcher
            if one and not unknown_name(one.value)
        ]
        if len(counts) < 2:
            return None, ""
        return counts[0] * counts[1], " x ".join(one.spelled for one in launcher if one)

    def _batch(self, data: int) -> None:
        micro = self.draft.override("batch.micro") or self.integer("micro_batch_size")
        self.set("batch.micro", micro or 1, "micro_batch_size", otherwise=DEFAULT)
        if total := self.integer("global_batch_size"):
            self.set("batch.global", total, "global_batch_size")
        else:
            comment = "default of Megatron-LM: micro x data"
            self.draft.set("batch.global", (micro or 1) * data, comment)

    def _attention(self) -> None:
        names = ("attention_backend", "use_flash_attn", "transformer_impl")
        backend = self.choice("attention_backend", _BACKENDS, "auto")
        implementation = self.known("transformer_impl")
        is_local = implementation is not None and implementation.value == "local"
        if is_local and not self.given("attention_backend"):
            backend = "fused" if self.flag("use_flash_attn") else "unfused"
        otherwise = "default of Megatron-LM: auto, a fused kernel"
        self.set("attention_backend", backend, *names, otherwise=otherwise)

    def _overlap(self) -> None:
        interleaves = "interleave" in self.draft.data["parallelism"]
        overlaps = interleaves and self.flag("overlap_p2p_comm", True)
        otherwise = f"default of Megatron-LM {'with' if interleaves else 'without'} virtual stages"
        self.set("overlap.pipeline", overlaps, "overlap_p2p_comm", otherwise=otherwise)
        set_userbuffers(self)
        set_overlap(self)

    # ---------------------------------------------------------------------------------- notes

    def _notes(self) -> None:
        """Note the arguments that have an effect but are not modelled, with their details."""
        details: dict[str, list[str]] = {}
        for name, argument in self.source.arguments.items():
            if name in DETAILS and not self.source.is_printed:
                details.setdefault(DETAILS[name], []).append(argument.spelled)
        for name, argument in self.source.arguments.items():
            if name not in NOT_MODELLED or self._is_neutral(argument):
                continue
            refined = f" (with {', '.join(details[name])})" if name in details else ""
            self.draft.note(argument.words, NOT_MODELLED[name].text + refined, argument.place)

    def _is_neutral(self, argument: Argument) -> bool:
        """Whether an argument that is not modelled has no effect here."""
        value = argument.value
        is_of_experts = "moe" in argument.name
        if not NOT_MODELLED[argument.name].applies(value):
            return True
        if is_of_experts and "experts" not in self.draft.data["model"]:
            return True
        is_fused: bool = self.draft.data["attention_backend"] == "fused"
        match argument.name:
            case "max_position_embeddings":
                length = self.given(self.first_given("seq_length"))
                is_learned = self.positions == "learned"
                return not is_learned or length is None or value == length.value
            case "attention_softmax_in_fp32" | "apply_query_key_layer_scaling":
                return is_fused
            case "microbatch_group_size_per_vp_stage":
                return value == str(self.pipeline)
        return False

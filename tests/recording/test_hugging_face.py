"""Models of transformers, known by configs alone: encoders, vision, speech, experts, scans."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from simtrain.recording.child import step as recorder
from simtrain.recording.child.recording import program_of
from simtrain.recording.program import Program, ProgramOp, expanded
from simtrain.studies.simulation import simulate
from simtrain.workload.ops import Op
from simtrain.workload.record import record_pass
from simtrain.workload.work import Gemm, GroupedGemm
from tests.helpers.command_line import refused
from tests.helpers.real_processes import real_collectives, recorded_collectives
from tests.helpers.recorded_programs import scenario_of

transformers = pytest.importorskip("transformers")
hugging_face = pytest.importorskip("simtrain.recording.child.hugging_face")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of transformers
]
TEXT = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 16,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", TEXT),
    "qwen3": ("Qwen3ForCausalLM", TEXT | {"head_dim": 16}),
    "gemma3_text": ("Gemma3ForCausalLM", TEXT | {"head_dim": 16}),
    "mixtral": ("MixtralForCausalLM", TEXT | EXPERTS),
    "gpt_oss": ("GptOssForCausalLM", TEXT | EXPERTS | {"head_dim": 16}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", TEXT | LATENT),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        TEXT
        | {"head_dim": 16, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        {"num_hidden_layers": 2, "hidden_size": 64, "num_heads": 8, "head_dim": 16}
        | {"n_groups": 1, "state_size": 16, "vocab_size": 256, "chunk_size": 32},
    ),
    "bert": ("BertForMaskedLM", TEXT),
    "vit": (
        "ViTForImageClassification",
        {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
        | {"num_attention_heads": 4, "image_size": 32, "patch_size": 8},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {"num_layers": 2, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4}
        | {"vocab_size": 256},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        {"encoder_layers": 2, "decoder_layers": 2, "d_model": 64, "vocab_size": 256}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
        | {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 50}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
}


_BY_DEFAULT = "mixtral", "vit"
SOME_BY_DEFAULT = [
    name if name in _BY_DEFAULT else pytest.param(name, marks=pytest.mark.ci) for name in MODELS
]
_UNEQUAL = "convolution_backward"


def config_of(name: str, folder: Path) -> Path:
    architecture, sizes = MODELS[name]
    file = folder / "config.json"
    text = json.dumps({"model_type": name, "architectures": [architecture], **sizes})
    file.write_text(text, "utf-8")
    return file


def all_ops(program: Program) -> list[ProgramOp]:
    return [op for runs in program.passes.values() for op in expanded(runs)]


def ops_of(program: Program, folder: Path) -> list[Op]:
    """Return the ops that are simulated."""
    result = simulate(scenario_of(program, folder))
    passes = result.plan.different_passes()
    return [op for pass_, times in passes for op in [*record_pass(pass_).ops] * times]


def recorded(config: Path, gpus: int = 1, **arguments: Any) -> Program:
    arguments = {"config": str(config), **arguments}
    step = recorder.record(hugging_face.train, arguments, gpus)
    return Program.model_validate_json(program_of(step, {"command": "x", "gpus": gpus}))


@pytest.mark.parametrize("name", SOME_BY_DEFAULT)
def test_products_are_those_that_torch_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`FlopCounterMode` counts neither attention nor grouped products here.

    It counts the backward pass of a convolution in groups as one without groups.
    """
    counts: list[dict[Any, int]] = []
    run = recorder._run

    def counted(*arguments: Any, is_logged: bool) -> None:
        with FlopCounterMode(display=False) as counter:
            run(*arguments, is_logged=is_logged)
        counts.append(counter.get_flop_counts()["Global"])

    monkeypatch.setattr(recorder, "_run", counted)
    program = recorded(config_of(name, tmp_path), tokens=32)
    result = simulate(scenario_of(program, tmp_path))
    products = sum(
        op.work.flops
        for pass_, _ in result.plan.different_passes()
        for op in record_pass(pass_).ops
        if isinstance(op.work, Gemm) and not op.name.endswith(_UNEQUAL)
    )
    assert products == sum(
        flops for packet, flops in counts[1].items() if not str(packet).endswith(_UNEQUAL)
    )
    assert result.hardware_flops >= products


@pytest.mark.parametrize("name", SOME_BY_DEFAULT)
def test_parameters_are_exact(name: str, tmp_path: Path) -> None:
    config = config_of(name, tmp_path)
    program = recorded(config, tokens=32, fsdp=True, gpus=8)
    with FakeTensorMode(), torch.device("cpu"):
        model = getattr(transformers, MODELS[name][0])(
            transformers.AutoConfig.for_model(**json.loads(config.read_text("utf-8")))
        )
    assert program.num_parameters == sum(each.numel() for each in model.parameters())
    assert len(program.groups) == 1
    assert simulate(scenario_of(program, tmp_path)).num_parameters == program.num_parameters


def test_tensor_parallelism_follows_the_plan_of_the_model(tmp_path: Path) -> None:
    """By hand: forward two sums of each layer and the embedding's, backward one of each input."""
    program = recorded(config_of("qwen3", tmp_path), 8, tokens=32, tensor=2, fsdp=True)
    assert (program.tensor, program.data) == (2, 4)
    numbers = [
        sum(op.op.endswith("all_reduce") for op in expanded(runs))
        for runs in (program.forward, program.backward)
    ]
    layers = TEXT["num_hidden_layers"]
    assert numbers == [2 * layers + 1, 5 * layers + 1]


def test_experts_are_divided_like_layers(tmp_path: Path) -> None:
    """Each rank has a part of every expert, so products keep their rows and lose half a dimension.

    By hand, forward: sums of the embedding, and per layer of the outputs of attention and experts.
    Backward: of the input of the head, and per layer of the inputs
    of queries, keys, values and experts, and of the weights of the router.
    """
    whole, halves = (
        recorded(config_of("mixtral", tmp_path), tensor, tokens=32, tensor=tensor)
        for tensor in (1, 2)
    )
    products = [
        sum(op.work.flops for op in ops_of(program, tmp_path) if isinstance(op.work, GroupedGemm))
        for program in (whole, halves)
    ]
    assert products[0] == 2 * products[1] > 0
    numbers = [
        sum("reduce" in op.op for op in expanded(runs) if op.group is not None)
        for runs in (halves.forward, halves.backward)
    ]
    layers = TEXT["num_hidden_layers"]
    assert numbers == [2 * layers + 1, 5 * layers + 1]


EXPERT_LAYOUTS: list[tuple[str, int, dict[str, Any]]] = [
    ("mixtral", 2, {"tensor": 2}),
    ("mixtral", 4, {"tensor": 2, "fsdp": True}),
    ("mixtral", 2, {"experts": 2, "fsdp": True}),
    ("mixtral", 4, {"tensor": 2, "experts": 2, "fsdp": True}),
    ("qwen3_moe", 4, {"experts": 4, "fsdp": True}),
    ("gpt_oss", 2, {"experts": 2, "fsdp": True}),
    ("deepseek_v3", 4, {"experts": 2, "fsdp": True}),
]


@pytest.mark.parametrize(
    ("name", "gpus", "arguments"),
    [
        EXPERT_LAYOUTS[1],
        *(
            pytest.param(*each, marks=pytest.mark.ci)
            for each in EXPERT_LAYOUTS
            if each != EXPERT_LAYOUTS[1]
        ),
    ],
)
def test_mixtures_are_divided_by_their_plans(
    name: str, gpus: int, arguments: dict[str, Any], tmp_path: Path
) -> None:
    program = recorded(config_of(name, tmp_path), gpus, tokens=32, **arguments)
    assert program.num_parameters == recorded(config_of(name, tmp_path), tokens=32).num_parameters
    assert bool(program.remarks) == ("experts" in arguments)
    exchanged = sum("alltoall" in op.op or "all_to_all" in op.op for op in all_ops(program))
    mixtures = TEXT["num_hidden_layers"] - (name == "deepseek_v3")
    # Numbers of tokens, and tokens there and back, forward and backward.
    assert exchanged == (5 * mixtures if "experts" in arguments else 0)
    assert simulate(scenario_of(program, tmp_path)).iteration_time_s > 0


@pytest.mark.ci
@pytest.mark.parametrize(("name", "gpus", "arguments"), EXPERT_LAYOUTS[:4])
def test_collectives_of_a_mixture_are_those_of_real_processes(
    name: str, gpus: int, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """In the real processes, routers choose experts in turns, as a recording assumes."""
    config = {"config": str(config_of(name, tmp_path)), "tokens": 32, **arguments}
    real = real_collectives(evenly_routed, config, gpus, tmp_path)
    assert recorded_collectives(hugging_face.train, config, gpus) == real


def evenly_routed(**arguments: Any) -> Any:
    """Return a Mixtral whose routers choose experts in turns."""
    from transformers.models.mixtral import modeling_mixtral

    router = modeling_mixtral.MixtralTopKRouter
    route = router.forward

    def in_turns(self: Any, x: torch.Tensor) -> Any:
        logits, weights, chosen = route(self, x)
        turns = torch.arange(chosen.numel()) % logits.shape[-1]
        return logits, weights, turns.view(chosen.shape)

    router.forward = in_turns
    return hugging_face.train(**arguments)


@pytest.mark.ci
def test_what_is_no_config_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no_such_type"}', "utf-8")
    assert "config.json: E949 it is no config of transformers" in refused(
        "import", "--record", "config.json"
    )

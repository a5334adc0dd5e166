"""`simtrain import megatron`: each argument is mapped, without effect, or noted."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.importing.megatron.arguments import (
    FLAGS,
    KNOWN,
    MAPPED,
    NOT_MODELLED,
    OTHER_MODELS,
    SPELLINGS,
    TABLE,
    USERBUFFERS,
)
from simtrain.scenario import Software, load_scenario
from tests.helpers.command_line import call
from tests.helpers.imported import BASE, GPT, GPT_SCENARIO, LLAMA, import_megatron, text_of, written
from tests.helpers.mapped_arguments import EXPERTS, MAPPED_EXAMPLES

# ------------------------------------------------------------------------------------------ tables


def test_every_argument_is_in_exactly_one_list() -> None:
    lists = MAPPED.keys(), NOT_MODELLED.keys(), TABLE.details.keys(), TABLE.without_effect
    assert sum(map(len, lists)) == len(KNOWN) >= 200
    effects = [*NOT_MODELLED.values(), *OTHER_MODELS.values()]
    refining = sum(len(one.details.split()) for one in effects)
    assert len(TABLE.details) == refining + len(USERBUFFERS)
    assert {name for name, _ in SPELLINGS.values()} <= KNOWN
    assert not SPELLINGS.keys() & KNOWN


def test_each_mapped_argument_has_an_example() -> None:
    assert MAPPED_EXAMPLES.keys() == MAPPED.keys()


def test_a_mapped_argument_is_named_beside_its_field() -> None:
    for name, example in MAPPED_EXAMPLES.items():
        if example:
            flag = next(word for word in reversed(example.split()) if word.startswith("--"))
            lines = [line for line in text_of(f"{BASE} {example}").splitlines() if flag in line]
            field = MAPPED[name].field.rpartition(".")[2]
            assert field in [line.split(":")[0].split()[-1] for line in lines], name


def test_the_older_names_of_an_encoder_are_mapped_too() -> None:
    older = BASE.replace("--num-layers", "--encoder-num-layers")
    older = older.replace("--seq-length", "--encoder-seq-length")
    assert import_megatron(older)[0] == import_megatron(BASE)[0]


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@pytest.mark.parametrize(
    ("names", "value"), [(TABLE.without_effect - OTHER_MODELS.keys(), 1), (TABLE.details, 7)]
)
def test_arguments_without_effect_and_details_alone_change_nothing(
    names: Iterable[str], value: int
) -> None:
    without = text_of(BASE)
    values = {name: "" if name in FLAGS else f" {value}" for name in names}
    assert [n for n in names if text_of(f"{BASE} {flag_of(n)}{values[n]}") != without] == []


def test_arguments_that_are_not_modelled_are_noted_with_their_effect() -> None:
    needs = "--attention-backend unfused --world-size 2 --use-distributed-optimizer"
    needs += " --position-embedding-type learned_absolute"
    for name, effect in NOT_MODELLED.items():
        value = next(iter(effect.active), "False" if "True" in effect.neutral else "4096")
        experts = EXPERTS if "moe" in name else ""
        imported = text_of(f"{BASE} {needs} {experts} {flag_of(name)} {value}")
        text = " ".join(imported.replace("#  ", "").split())
        assert f"# - {flag_of(name)}" in text
        assert effect.text in text.replace("# ", ""), name


@given(st.sampled_from(sorted(KNOWN)), st.integers(0, 60), st.sampled_from("xqz"))
def test_no_misspelled_argument_is_ignored(name: str, at: int, letter: str) -> None:
    wrong = f"--{name[:at]}{letter}{name[at:]}".replace("_", "-")
    with pytest.raises(InputError, match="E871") as caught:
        import_megatron(f"{BASE} {wrong} 1")
    assert "did you mean --" in str(caught.value)


@pytest.mark.parametrize("way", ["allgather", "['all_gather']", "all_gather all_gather"])
def test_cp_comm_types_are_mapped(way: str) -> None:
    source = f"{BASE} --world-size 8 --context-parallel-size 4 --cp-comm-type {way}"
    scenario, text = import_megatron(source)
    split = scenario.parallelism
    assert (split.context, split.data, split.context_communication) == (4, 2, "all_gather")
    assert "--context-parallel-size" not in text.partition("model:")[0]
    with pytest.raises(InputError, match=r"E872.* the same for all layers"):
        import_megatron(f"{BASE} --context-parallel-size 2 --cp-comm-type p2p a2a")


# ---------------------------------------------------------------------------------- whole sources


def test_a_script_becomes_this_file() -> None:
    assert text_of(written("run.sh", GPT)) == GPT_SCENARIO


@pytest.mark.parametrize("source", [GPT, LLAMA, BASE], ids=["gpt", "llama", "text"])
def test_loading_the_written_file_gives_the_scenario(source: str) -> None:
    name = written("run.sh", source) if source != BASE else source
    scenario, text = import_megatron(name)
    loaded = load_scenario(written("scenario.yaml", text))
    assert loaded.model_dump(exclude={"name"}) == scenario.model_dump(exclude={"name"})
    if source == LLAMA:
        assert call("run", "scenario.yaml").exit_code == 0


def test_fusions_of_kernels_that_the_model_lacks_change_nothing() -> None:
    without = "--no-rope-fusion --no-bias-swiglu-fusion --no-masked-softmax-fusion"
    scenario, _ = import_megatron(f"{BASE} {without}")
    assert scenario.software == Software(stack="megatron_core")


def test_a_modern_script_is_mapped() -> None:
    scenario, text = import_megatron(written("run.sh", LLAMA))
    model = {
        "ffn_hidden_size": 14336,
        "num_query_groups": 8,
        "kv_channels": 128,
        "activation": "swiglu",
        "normalization": "rms_norm",
        "position_embedding": "rope",
        "biases": False,
        "qkv_biases": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tied_embeddings": False,
        "vocab_size": 128256,  # 128,255 tokens and the end of a document are 501 x 256.
    }
    for name, value in model.items():
        assert getattr(scenario.model, name) == value
    assert scenario.parallelism.data == 4
    assert scenario.memory.zero_stage == 1
    assert scenario.overlap.data_parallel and not scenario.overlaps_pipeline
    assert scenario.recompute.strategy == "selective"
    assert scenario.precision.compute == "fp8"
    assert scenario.precision.fp8_recipe == "delayed"
    assert scenario.cluster == "h100_sxm"
    assert "compute: fp8" in text and "--fp8-format, line 34" in text
    assert "amax" not in text  # Its history changes neither seconds nor bytes.
    assert scenario.overlap.parameter_gather
    assert scenario.overlap.gradient_buckets == "megatron"
    assert "--max-position-embeddings" not in text  # No table of rotary positions is learned.


FSDP = f"{BASE} --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"


def test_fsdp_is_a_stage_of_zero_and_overlaps() -> None:
    scenario, _ = import_megatron(f"{FSDP} --world-size 4")
    assert (scenario.memory.zero_stage, scenario.overlap.data_parallel) == (3, True)
    assert scenario.overlap.gradient_buckets == "layer"


@pytest.mark.parametrize(
    ("arguments", "memory"),
    [
        ("--world-size 2 --context-parallel-size 2", (1, None)),
        ("--world-size 1", (0, None)),
        ("--world-size 4 --num-distributed-optimizer-instances 2", (1, 2)),
        ("--world-size 2 --num-distributed-optimizer-instances 2", (0, None)),
        (
            "--world-size 4 --context-parallel-size 2 --num-distributed-optimizer-instances 2",
            (1, 1),
        ),
    ],
)
def test_a_distributed_optimizer_shards_over_data_and_context_ranks(
    arguments: str, memory: tuple[int, int | None]
) -> None:
    scenario, _ = import_megatron(f"{BASE} --use-distributed-optimizer {arguments}")
    assert (scenario.memory.zero_stage, scenario.memory.shard_over) == memory


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--world-size 3", "does not divide 3 data x context parallel ranks"),
        ("--world-size 4 --context-parallel-size 4", "does not divide 1 replicas"),
    ],
)
def test_instances_of_the_optimizer_divide_the_ranks(arguments: str, words: str) -> None:
    instances = "--use-distributed-optimizer --num-distributed-optimizer-instances 2"
    with pytest.raises(InputError, match=words):
        import_megatron(f"{BASE} {instances} {arguments}")


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ("", 50304),  # 50,257 tokens
        ("--tokenizer-type Llama2Tokenizer", 32000),
        ("--tokenizer-type Llama3Tokenizer", 128256),
        ("--tokenizer-type MistralTokenizer", 32768),
        ("--tokenizer-type HuggingFaceTokenizer --vocab-size 151936", 152064 - 128),
        ("--tokenizer-type HuggingFaceTokenizer --padded-vocab-size 151808", 151808),
    ],
)
def test_a_known_tokenizer_has_its_own_vocabulary(arguments: str, rows: int) -> None:
    assert import_megatron(f"{BASE} {arguments}")[0].model.vocab_size == rows


def test_an_unknown_tokenizer_asks_for_the_vocabulary() -> None:
    source = f"{BASE} --tokenizer-type HuggingFaceTokenizer --tokenizer-model mine"
    with pytest.raises(InputError) as caught:
        import_megatron(source)
    (problem,) = caught.value.problems
    assert (problem.code, "HuggingFaceTokenizer" in problem.message) == ("E873", True)
    for remedy in ("--vocab-size", "--padded-vocab-size", "--set model.vocab_size="):
        assert remedy in str(problem.fix)
    scenario, text = import_megatron(source, ["model.vocab_size=151936"])
    assert scenario.model.vocab_size == 151936
    assert "  vocab_size: 151936              # --set\n" in text


@pytest.mark.parametrize(
    ("arguments", "fusion"),
    [
        ("", None),
        ("--cross-entropy-fusion-impl te", None),
        ("--cross-entropy-loss-fusion", "native"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl native", "native"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "te"),
    ],
)
def test_a_fused_cross_entropy_is_megatrons_own_unless_it_is_transformer_engines(
    arguments: str, fusion: str | None
) -> None:
    scenario, _ = import_megatron(f"{BASE} {arguments}")
    kernels = scenario.facts.kernels
    assert (kernels.cross_entropy_fusion if kernels.fused_cross_entropy else None) == fusion


@pytest.mark.parametrize(
    ("arguments", "workspaces"),
    [
        ("", (2, 1, 4, None)),
        ("--deterministic-mode", (2, 1, 4, 32 * 2**20)),
        ("--transformer-impl local", (2, 0, 4, None)),
        (f"{EXPERTS} --moe-grouped-gemm", (2, 1, 4, None)),
        (EXPERTS, (2, 1, 0, None)),
        (f"{EXPERTS} --moe-grouped-gemm --moe-use-legacy-grouped-gemm", (2, 1, 0, None)),
        (f"{EXPERTS} --moe-grouped-gemm --transformer-impl local", (2, 0, 0, None)),
    ],
)
def test_workspaces_follow_from_the_products_kernels(
    arguments: str, workspaces: tuple[int, int, int, int | None]
) -> None:
    facts = import_megatron(f"{BASE} {arguments}")[0].facts
    counts = facts.torch_workspaces, facts.linear_workspaces, facts.expert_workspaces
    assert (*counts, facts.cublas_workspace) == workspaces


def test_latent_attention_may_be_unfused_in_transformer_engine_only() -> None:
    source = f"{BASE} --multi-latent-attention --attention-backend unfused"
    scenario, _ = import_megatron(source)
    assert (scenario.attention_backend, scenario.model.latent_attention is None) == (
        "unfused",
        False,
    )
    with pytest.raises(InputError, match="--transformer-impl local cannot be combined"):
        import_megatron(f"{source} --transformer-impl local")


def test_fsdp_with_a_pipeline_is_noted() -> None:
    scenario, text = import_megatron(f"{FSDP} --world-size 4 --pipeline-model-parallel-size 2")
    assert scenario.memory.zero_stage == 1
    assert "ZeRO stages 2 and 3" in text


PRINTED = """\
using world size: 16, data-parallel size: 2, tensor-model-parallel size: 4
0: ------------------------ arguments ------------------------
0:   accumulate_allreduce_grads_in_fp32 .............. True
0:   add_bias_linear ................................. True
0:   attention_backend ............................... AttnBackend.unfused
0:   attention_dropout ............................... 0.1
0:   bf16 ............................................ False
0:   bias_gelu_fusion ................................ True
0:   context_parallel_size ........................... 1
0:   cp_comm_type .................................... ['p2p']
0:   data_parallel_size .............................. 2
0:   ffn_hidden_size ................................. 24576
0:   fp16 ............................................ True
0:   fp8 ............................................. None
0:   global_batch_size ............................... 64
0:   hidden_size ..................................... 6144
0:   kv_channels ..................................... 96
0:   lr .............................................. 0.0001
0:   max_position_embeddings ......................... 2048
0:   micro_batch_size ................................ 2
0:   num_attention_heads ............................. 64
0:   num_experts ..................................... None
0:   num_layers ...................................... 48
0:   num_layers_per_virtual_pipeline_stage ........... None
0:   num_query_groups ................................ 1
0:   num_microbatches_with_partial_activation_checkpoints  None
0:   padded_vocab_size ............................... 50688
0:   pipeline_model_parallel_size .................... 2
0:   position_embedding_type ......................... learned_absolute
0:   recompute_granularity ........................... full
0:   recompute_method ................................ block
0:   recompute_modules ............................... ['core_attn']
0:   recompute_num_layers ............................ 3
0:   rampup_batch_size ............................... None
0:   seq_length ...................................... 2048
0:   sequence_parallel ............................... True
0:   tensor_model_parallel_size ...................... 4
0:   virtual_pipeline_model_parallel_size ............ None
0:   world_size ...................................... 16
0: -------------------- end of arguments ---------------------
0: setting number of microbatches to constant 16
"""


def test_printed_arguments_are_those_of_the_script() -> None:
    log, script = written("log.txt", PRINTED), written("run.sh", GPT)
    printed, text = import_megatron(log)
    assert printed == import_megatron(script)[0]
    assert "Not modelled" not in text
    assert "  num_layers: 48                  # num_layers, line 23\n" in text
    with pytest.raises(InputError) as caught:
        import_megatron(written("log.txt", PRINTED.replace("fp8 ..", "fp_8 .")))
    assert str(caught.value).startswith("log.txt:14:6: E871 fp_8 is not a known argument")
    assert "did you mean fp8?" in str(caught.value)


def test_a_file_of_arguments_has_comments_and_lines() -> None:
    lines = "# my run\n" + BASE.replace(" --", " \\\n  # a comment\n--") + " # the end\n"
    scenario, text = import_megatron(written("args.txt", lines))
    assert scenario == import_megatron(BASE)[0]
    assert "# --hidden-size, line 4\n" in text


def test_a_script_with_windows_line_breaks_gives_the_same_file() -> None:
    Path("run.sh").write_bytes(GPT.replace("\n", "\r\n").encode())
    assert text_of("run.sh") == GPT_SCENARIO


def test_a_gated_mlp_is_rounded_as_by_megatron() -> None:
    """8/3 · 4096 is 10922.67, and the multiple of 64 below it is 170 · 64 = 10880."""
    source = BASE.replace("--hidden-size 1024", "--hidden-size 4096")
    assert import_megatron(f"{source} --swiglu")[0].model.ffn_hidden_size == 10880
    assert import_megatron(source)[0].model.ffn_hidden_size == 4 * 4096


def test_an_accounted_embedding_or_loss_replaces_a_layer() -> None:
    """22 layers, an embedding and a loss count as 24 layers: 6 on each of 4 stages."""
    source = BASE.replace("--num-layers 24", "--num-layers 22 --pipeline-model-parallel-size 4")
    source += " --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    scenario = import_megatron(source)[0]
    assert [scenario.layers_of_stage(stage) for stage in range(4)] == [5, 6, 6, 5]
    interleaved = f"{BASE.replace('layers 24', 'layers 30')} --pipeline-model-parallel-size 4 "
    interleaved += "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    assert import_megatron(interleaved)[0].layers_of_stage(0) == 7


LAYOUT = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout"


def test_a_layout_sets_the_chunks() -> None:
    source = f"{BASE} --global-batch-size 8 {LAYOUT} 'Et*2|(t*3|)*6,t*4|L'"
    with pytest.raises(InputError, match=r"E339 .* has 9 chunks"):
        import_megatron(source)
    scenario, text = import_megatron(source.replace("*6,t*4|L", "*6,t*4L"))
    assert scenario.parallelism.interleave == 2
    assert scenario.chunks_layers == (2, *[3] * 6, 4)
    assert "--pipeline-model-parallel-layout" in text and "not modelled" not in text
    single = import_megatron(f"{BASE} --global-batch-size 8 {LAYOUT} 'E|t*12|t*12|L'")[0]
    assert (single.parallelism.interleave, single.stage_sizes) == (1, (0, 12))
    apart = f"{source.replace('*6,t*4|L', '*4,t*10|m|L')} --mtp-num-layers 1 "
    apart += "--position-embedding-type rope --tensor-model-parallel-size 2 --sequence-parallel"
    scenario = import_megatron(apart)[0]
    assert scenario.overlaps_pipeline and scenario.chunk_contents.separates_loss


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("'Et*24|x'", "must be a layout: 'x' is neither one of E, t, m, L"),
        ("'E|t*12|t*12|L' --decoder-first-pipeline-num-layers 3", "cannot be set together with"),
        ("'E|t*12|t*12|L' --num-virtual-stages-per-pipeline-rank 2", "cannot be set together with"),
    ],
)
def test_a_layout_is_refused_as_by_megatron(arguments: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        import_megatron(f"{BASE} --global-batch-size 8 {LAYOUT} {arguments}")


def test_virtual_stages_follow_from_their_layers() -> None:
    """24 layers on 4 stages are 6 per stage, so 3 chunks of 2. Transfers of chunks overlap by
    default.
    """
    source = f"{BASE} --pipeline-model-parallel-size 4 --global-batch-size 8"
    scenario = import_megatron(f"{source} --num-layers-per-virtual-pipeline-stage 2")[0]
    assert (scenario.num_chunks, scenario.overlaps_pipeline) == (3, True)


INTERLEAVED = f"""{BASE} --world-size 8 --pipeline-model-parallel-size 4 --global-batch-size 8
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --num-virtual-stages-per-pipeline-rank 2"""


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", (True, True, True)),
        ("--no-overlap-p2p-communication", (False, True, True)),
        ("--no-align-grad-reduce", (True, False, True)),
        ("--no-align-param-gather", (True, True, False)),
        ("--no-delay-grad-reduce", (True, False, True)),
        ("--delay-param-gather", (True, True, True)),
    ],
)
def test_overlap_has_the_defaults_of_megatrons_parser(flags: str, expected: tuple[bool]) -> None:
    scenario = import_megatron(f"{INTERLEAVED} {flags}")[0]
    found = (
        scenario.overlaps_pipeline,
        scenario.aligns_gradient_reduction,
        scenario.aligns_parameter_gather,
    )
    assert found == expected


def test_an_import_follows_the_defaults_of_other_layouts() -> None:
    flat = import_megatron(INTERLEAVED.replace("--num-virtual-stages-per-pipeline-rank 2", ""))[0]
    assert not flat.overlaps_pipeline and not flat.aligns_parameter_gather
    interleaved = flat.replace({"parallelism.interleave": 2})
    assert interleaved == import_megatron(INTERLEAVED)[0]
    assert interleaved.overlaps_pipeline and interleaved.aligns_parameter_gather


def test_a_log_of_an_older_version_says_that_gathers_were_not_aligned() -> None:
    names = {
        "num_layers": 24,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "seq_length": 2048,
        "max_position_embeddings": 2048,
        "micro_batch_size": 1,
        "global_batch_size": 8,
        "world_size": 8,
        "padded_vocab_size": 50688,
        "pipeline_model_parallel_size": 4,
        "num_layers_per_virtual_pipeline_stage": 3,
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "overlap_p2p_comm": True,
        "delay_grad_reduce": True,
        "delay_param_gather": False,
    }
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in names.items()]
    ruler = "-" * 24
    log = "\n".join([f"{ruler} arguments {ruler}", *lines, f"{ruler} end of arguments {ruler}"])
    Path("old.log").write_text(log)
    scenario, text = import_megatron("old.log")
    assert scenario.overlaps_pipeline and scenario.aligns_gradient_reduction
    assert not scenario.aligns_parameter_gather
    assert "align_parameter_gather: false" in text and "delay_param_gather" in text


@pytest.mark.parametrize(
    ("arguments", "gradients"),
    [
        ("--bf16", "fp32"),
        ("--bf16 --grad-reduce-in-bf16", "bf16"),
        ("--fp16", "fp16"),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp32"),
    ],
)
def test_gradients_have_the_type_that_megatron_gives_them(arguments: str, gradients: str) -> None:
    source = BASE.replace("--bf16", arguments)
    assert import_megatron(source)[0].precision.gradients == gradients


def test_an_override_changes_the_values_that_depend_on_it() -> None:
    scenario = import_megatron(
        f"{BASE} --world-size 8", ["parallelism.tensor=4", "cluster=h100_sxm"]
    )[0]
    assert scenario.parallelism.data == 2
    assert scenario.model.vocab_size == 50688  # 50,257 tokens are 98.2 x 128 x 4.
    assert "tensor: 2                       # --set\n" in text_of(BASE, "parallelism.tensor=2")
    whole_section = text_of(BASE, "recompute=full")
    assert "recompute:                        # --set\n  strategy: full\n" in whole_section


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ("--defer-embedding-wgrad-compute --wgrad-deferral-limit 3", 3),
        ("--defer-embedding-wgrad-compute", 8),
        ("--wgrad-deferral-limit 3", 0),
    ],
)
def test_deferred_weight_gradients_of_the_output_layer(arguments: str, number: int) -> None:
    split = "--pipeline-model-parallel-size 4 --micro-batch-size 2 --global-batch-size 16"
    scenario, _ = import_megatron(f"{BASE} {split} {arguments}")
    assert scenario.overlap.deferred_output_gradients == number


def test_deferred_weight_gradients_have_no_effect_without_a_pipeline() -> None:
    scenario, _ = import_megatron(f"{BASE} --defer-embedding-wgrad-compute")
    assert scenario.overlap.deferred_output_gradients == 0

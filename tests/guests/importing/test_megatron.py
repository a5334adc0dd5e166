"""`simtrain import`: each argument is mapped, without effect, or noted."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.guests.importing.megatron.arguments import (
    FLAGS,
    KNOWN,
    MAPPED,
    NOT_MODELLED,
    OTHER_MODELS,
    SPELLINGS,
    TABLE,
    USERBUFFERS,
)
from simtrain.scenario import load_scenario
from tests.helpers.command_line import call
from tests.helpers.imported import BASE, EXPERTS, GPT, LLAMA, import_megatron, text_of, written

# ------------------------------------------------------------------------------------------ tables


def test_every_argument_is_in_exactly_one_list() -> None:
    lists = MAPPED.keys(), NOT_MODELLED.keys(), TABLE.details, TABLE.without_effect
    assert sum(map(len, lists)) == len(KNOWN) >= 200
    effects = [*NOT_MODELLED.values(), *OTHER_MODELS.values()]
    refining = sum(len(one.details.split()) for one in effects)
    assert len(TABLE.details) == refining + len(USERBUFFERS)
    assert {name for name, _ in SPELLINGS.values()} <= KNOWN
    assert not SPELLINGS.keys() & KNOWN


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@pytest.mark.parametrize(
    ("names", "value"), [(TABLE.without_effect - OTHER_MODELS.keys(), 1), (TABLE.details, 7)]
)
def test_arguments_without_effect_and_details_alone_change_nothing(
    names: Iterable[str], value: int
) -> None:
    values = {name: "" if name in FLAGS else f" {value}" for name in names}
    words = " ".join(f"{flag_of(name)}{values[name]}" for name in sorted(names))
    assert text_of(f"{BASE} {words}") == text_of(BASE)


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


# ---------------------------------------------------------------------------------- whole sources


@pytest.mark.parametrize("source", [GPT, LLAMA, BASE], ids=["gpt", "llama", "text"])
def test_loading_the_written_file_gives_the_scenario(source: str) -> None:
    name = written("run.sh", source) if source != BASE else source
    scenario, text = import_megatron(name)
    loaded = load_scenario(written("scenario.yaml", text))
    assert loaded.model_dump(exclude={"name"}) == scenario.model_dump(exclude={"name"})
    if source == LLAMA:
        assert call("run", "scenario.yaml").exit_code == 0


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


PRINTED = Path(__file__).with_name("megatron_log.txt").read_text("utf-8")


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
    assert text_of("run.sh") == text_of(written("run.sh", GPT))


def test_an_accounted_embedding_or_loss_replaces_a_layer() -> None:
    """22 layers, an embedding and a loss count as 24 layers: 6 on each of 4 stages."""
    source = BASE.replace("--num-layers 24", "--num-layers 22 --pipeline-model-parallel-size 4")
    source += " --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    scenario = import_megatron(source)[0]
    assert [scenario.layers_of_stage(stage) for stage in range(4)] == [5, 6, 6, 5]
    interleaved = f"{BASE.replace('layers 24', 'layers 30')} --pipeline-model-parallel-size 4 "
    interleaved += "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    assert import_megatron(interleaved)[0].layers_of_stage(0) == 7


INTERLEAVED = f"""{BASE} --world-size 8 --pipeline-model-parallel-size 4 --global-batch-size 8
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --num-virtual-stages-per-pipeline-rank 2"""


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


def test_an_override_changes_the_values_that_depend_on_it() -> None:
    scenario = import_megatron(
        f"{BASE} --world-size 8", ["parallelism.tensor=4", "cluster=h100_sxm"]
    )[0]
    assert scenario.parallelism.data == 2
    assert scenario.model.vocab_size == 50688  # 50,257 tokens are 98.2 x 128 x 4.
    assert "tensor: 2                       # --set\n" in text_of(BASE, "parallelism.tensor=2")
    whole_section = text_of(BASE, "recompute=full")
    assert "recompute:                        # --set\n  strategy: full\n" in whole_section

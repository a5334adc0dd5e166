"""`simtrain import` of configs in Python."""

from pathlib import Path

import pytest

from simtrain.errors import InputError
from simtrain.scenario import Scenario, load_scenario
from tests.helpers.command_line import call, refused
from tests.helpers.imported import import_torchtitan, written

REGISTRY = """\
import os

from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def _base(flavor, degree=1):
    return Trainer.Config(
        model_spec=model_registry(flavor),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=2, seq_len=8192, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(tensor_parallel_degree=degree),
        activation_checkpoint=FullAC.Config(),
    )


def llama3_70b() -> Trainer.Config:
    config = _base("70B", degree=8)
    config.compile = CompileConfig(enable=True, components=["loss"])
    return config


def llama3_8b_float8():
    config = _base("8B")
    config.compile = CompileConfig(enable=True)
    config.model_spec = model_registry(
        "8B", converters=[Float8LinearConverter.Config(filter_fqns=["output"])]
    )
    return config


def llama3_1b_selective():
    config = _base("1B")
    config.activation_checkpoint = SelectiveAC.Config()
    config.training.disable_cuda_graphs = False
    if os.environ.get("LONG"):
        config.training.seq_len = 131072
    return config


def patched():
    config = _base("8B")
    patch(config)
    return config
"""


def imported(config: str, text: str = REGISTRY, *sets: str, **options: int) -> Scenario:
    file = written("config_registry.py", text)
    return import_torchtitan(file, sets, config=config, **options)[0]  # type: ignore[arg-type]


def test_a_function_is_followed_through_its_helpers() -> None:
    scenario = imported("llama3_70b", gpus=128)
    assert (scenario.model.num_layers, scenario.model.seq_length) == (80, 8192)
    split = scenario.parallelism
    assert (split.tensor, split.data, scenario.batch.micro) == (8, 16, 2)
    assert (scenario.recompute.strategy, scenario.memory.zero_stage) == ("full", 3)
    # The loss alone is compiled.
    assert scenario.software.stack == "torchtitan"
    assert scenario.facts.kernels.fused_cross_entropy and not scenario.facts.cuda_graphs


def test_a_converter_to_float8_is_read_from_the_model() -> None:
    scenario = imported("llama3_8b_float8", gpus=8)
    assert (scenario.precision.compute, scenario.precision.fp8_recipe) == ("fp8", "tensorwise")
    assert scenario.software.stack == "torchtitan_compiled"


def test_a_config_that_depends_on_the_environment_names_the_condition() -> None:
    with pytest.raises(
        InputError, match=r"registry\.py:\d+:\d+: E874 llama3_1b_selective depends on os"
    ):
        imported("llama3_1b_selective", gpus=8)
    plain = REGISTRY.replace('os.environ.get("LONG")', "False")
    scenario = imported("llama3_1b_selective", plain, gpus=8)
    assert (scenario.model.seq_length, scenario.model.tied_embeddings) == (8192, True)
    assert scenario.facts.cuda_graphs


def test_a_function_of_another_file_that_gets_the_config_is_unknown() -> None:
    with pytest.raises(InputError, match="E871 patch is not a known key"):
        imported("patched", gpus=8)
    file = written("config_registry.py", REGISTRY)
    _, text = import_torchtitan(file, gpus=8, config="patched", ignore_unknown=True)
    assert "# - patch" in text


def test_one_of_several_configs_is_chosen_by_its_name() -> None:
    written("config_registry.py", REGISTRY)
    errors = refused("import", "config_registry.py", "--gpus", "8")
    assert "E875 3 configs: llama3_70b, llama3_8b_float8" in errors and "--config" in errors
    errors = refused("import", "config_registry.py", "--config", "llama3_7b")
    assert "did you mean llama3_70b?" in errors
    words = ("--config", "llama3_70b", "--gpus", "64", "-o", "o.yaml")
    assert call("import", "config_registry.py", *words).exit_code == 0
    assert load_scenario("o.yaml").num_gpus == 64
    assert "of TOML" not in errors


def test_a_job_without_functions_has_no_config_to_choose() -> None:
    job = written("job.toml", '[model]\nname = "llama3"\n')
    with pytest.raises(InputError, match="E875 --config is x, but the file has one config"):
        import_torchtitan(job, config="x")


def test_the_model_is_that_of_the_folder_or_of_the_name(tmp_path: Path) -> None:
    text = REGISTRY.replace("from torchtitan.models.llama3 import", "from . import")
    assert imported("llama3_70b", text, gpus=64).model.hidden_size == 8192
    folder = tmp_path / "qwen3_5"
    folder.mkdir()
    file = folder / "config_registry.py"
    file.write_text(text.replace("def llama3_70b", "def qwen35_4b").replace("70B", "4B"), "utf-8")
    with pytest.raises(InputError, match=r"E877 the flavor 4B of qwen3_5 .* linear attention"):
        import_torchtitan(str(file), gpus=64, config="qwen35_4b")


def test_the_file_is_recognised_by_other_commands() -> None:
    written("config_registry.py", REGISTRY)
    error = refused("run", "config_registry.py")
    assert "E875 3 configs: llama3_70b" in error
    written("recipe.yaml", "_target_: megatron.bridge.training.config.ConfigContainer\n")
    error = refused("import", "recipe.yaml")
    assert "E116 this is a config of Megatron-Bridge" in error

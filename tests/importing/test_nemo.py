"""`simtrain import`: recipes of NeMo 2."""

import pytest

from simtrain.errors import InputError
from tests.helpers.command_line import call, refused
from tests.helpers.imported import nemo_draft, written

RECIPE = """\
import nemo_run as run
from nemo import lightning as nl
from nemo.collections.llm.api import pretrain
from nemo.collections.llm.gpt.model.mixtral import MixtralConfig8x7B, MixtralModel
from nemo.collections.llm.recipes.optim.adam import distributed_fused_adam_with_cosine_annealing
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback
from nemo.lightning.pytorch.callbacks.moe_token_drop import MegatronTokenDropCallback


@run.cli.factory
def model():
    return run.Config(MixtralModel, config=run.Config(MixtralConfig8x7B))


def trainer(pipeline_parallelism=4, num_nodes=1, callbacks=None):
    strategy = run.Config(
        nl.MegatronStrategy,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=pipeline_parallelism,
        virtual_pipeline_model_parallel_size=8,
        expert_model_parallel_size=8,
        gradient_as_bucket_view=True,
        ddp=run.Config(DDP, overlap_grad_reduce=True, grad_reduce_in_fp32=True),
    )
    return run.Config(
        nl.Trainer,
        callbacks=callbacks,
        devices=8,
        num_nodes=num_nodes,
        plugins=run.Config(nl.MegatronMixedPrecision, precision="bf16-mixed"),
        strategy=strategy,
    )


def pretrain_recipe(num_nodes: int = 8, performance_mode: bool = False, fn=pretrain):
    recipe = run.Partial(
        fn,
        model=model(),
        trainer=trainer(num_nodes=num_nodes, callbacks=[run.Config(TimingCallback)]),
        data=run.Config(MockDataModule, seq_length=4096, global_batch_size=512, micro_batch_size=1),
        optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4),
    )
    if performance_mode:
        recipe = optimized(recipe)
    return recipe


def optimized(recipe):
    recipe.trainer.callbacks.extend(
        [run.Config(MegatronTokenDropCallback), run.Config(MegatronCommOverlapCallback)]
    )
    recipe.trainer.plugins.grad_reduce_in_fp32 = False
    return recipe


def fast_recipe():
    return optimized(pretrain_recipe())
"""


def test_a_recipe_is_read_as_text() -> None:
    scenario, text = nemo_draft(written("recipe.py", RECIPE), config="pretrain_recipe").finished()
    assert scenario.model.experts and scenario.model.experts.num == 8
    split, overlap = scenario.parallelism, scenario.overlap
    assert (split.pipeline, split.interleave, split.expert) == (4, 8, 8)
    assert (scenario.num_gpus, scenario.batch.global_, scenario.memory.zero_stage) == (64, 512, 1)
    assert split.expert_dispatch == "all_to_all"
    assert (overlap.data_parallel, scenario.overlaps_pipeline) == (True, False)
    assert "# trainer.devices x trainer.num_nodes: 64 GPUs / 4 per replica" in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "data=run.Config",
            "data=None if more() else run.Config",
            r"data depends on more\(\), a cond",
        ),
        (
            "run.Config(TimingCallback)",
            "run.Config(T) if more() else 1",
            r"trainer\.callbacks depends",
        ),
    ],
)
def test_a_section_of_which_the_file_determines_nothing_is_an_error(
    old: str, new: str, message: str
) -> None:
    assert old in RECIPE
    file = written("recipe.py", RECIPE.replace(old, new))
    with pytest.raises(
        InputError, match=f"E874 {message}.*(?s:.*)print the config and import that"
    ):
        nemo_draft(file, config="pretrain_recipe").finished()


def test_callbacks_set_overlaps_and_dropped_tokens() -> None:
    scenario, _ = nemo_draft(written("recipe.py", RECIPE), config="fast_recipe").finished()
    assert scenario.overlaps_pipeline and scenario.aligns_parameter_gather
    assert scenario.precision.gradients == "bf16"
    assert scenario.model.experts and scenario.model.experts.capacity_factor == 1


PRINTED = """\
_target_: nemo.collections.llm.api.pretrain
_partial_: true
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config:
    _target_: nemo.collections.llm.gpt.model.llama.Llama3Config8B
trainer:
  _target_: nemo.lightning.Trainer
  devices: 8
  num_nodes: 2
  plugins:
    _target_: nemo.lightning.MegatronMixedPrecision
    precision: bf16-mixed
  strategy:
    _target_: nemo.lightning.MegatronStrategy
    context_parallel_size: 2
    tensor_model_parallel_size: 1
data:
  seq_length: 8192
  global_batch_size: 512
  micro_batch_size: 1
optim:
  _target_: nemo.lightning.MegatronOptimizerModule
  config:
    _target_: megatron.core.optimizer.OptimizerConfig
    use_distributed_optimizer: true
"""


def test_a_printed_recipe_is_read() -> None:
    scenario, _ = nemo_draft(written("recipe.yaml", PRINTED)).finished()
    assert (scenario.model.num_layers, scenario.parallelism.context) == (32, 2)
    assert (scenario.num_gpus, scenario.memory.zero_stage) == (16, 1)
    other = PRINTED.replace("Llama3Config8B", "NewConfig8B")
    with pytest.raises(InputError, match="E877 simtrain does not have the sizes of the model New"):
        nemo_draft(written("recipe.yaml", other)).finished()


def test_configs_of_nemo_1_are_refused() -> None:
    first = "trainer:\n  num_nodes: 2\nmodel:\n  num_layers: 24\n"
    with pytest.raises(InputError, match="configs of NeMo 1 are not read"):
        nemo_draft(written("gpt.yaml", first))


def test_the_files_are_recognised() -> None:
    written("recipe.yaml", PRINTED)
    assert call("run", "recipe.yaml").exit_code == 0
    assert "E116 this is a config of NeMo" in refused("import", "recipe.yaml")
    done = call("import", "recipe.yaml", "-o", "o.yaml")
    assert done.exit_code == 0
    written("recipe.py", RECIPE)
    errors = refused("import", "recipe.py")
    assert "E875 2 configs: pretrain_recipe, fast_recipe" in errors

"""`simtrain import`, and the named models from which it takes sizes."""

import pytest

from simtrain import models
from simtrain.errors import InputError
from simtrain.guests.importing.torchtitan.reader import MAPPED, TABLE
from simtrain.scenario import Scenario
from simtrain.scenario.section import DEFAULT_SAVED_OPS
from simtrain.studies.simulation import simulate_memory
from tests.helpers.imported import import_torchtitan, written

JOB = """\
[job]
dump_folder = "./outputs"

[model]
name = "llama3"
flavor = "8B"

[optimizer]
name = "AdamW"
lr = 3e-4

[training]
local_batch_size = 2
seq_len = 8192
compile = true

[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 4  # inside a node

[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
"""


def text_of(job: str, *overrides: str) -> str:
    return import_torchtitan(written("job.toml", job), overrides)[1]


def imported(job: str) -> Scenario:
    return import_torchtitan(written("job.toml", job))[0]


def test_a_pipeline_divides_the_local_batch() -> None:
    job = (
        JOB.replace(
            "tensor_parallel_degree = 4  # inside a node",
            'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"\n'
            "pipeline_parallel_layers_per_stage = 2",
        )
        .replace("local_batch_size = 2", "local_batch_size = 8")
        .replace("shard_degree = 8", "shard_degree = 1")
    )
    job += "[float8]\nrecipe_name = 'rowwise'\n"
    scenario = imported(job)
    split = scenario.parallelism
    assert (split.pipeline, split.interleave, scenario.schedule) == (4, 4, "interleaved")
    assert (scenario.batch.micro, scenario.num_microbatches, split.data) == (1, 8, 1)


def test_405b_on_512_gpus_is_divided_over_stages_tensors_and_replicas() -> None:
    """126 layers on 8 stages: 16 per stage, 15 at both ends. Parameters stay unsharded after the
    forward pass, and gradients are reduced once.
    """
    job = JOB.replace('"8B"', '"405B"').replace('mode = "selective"', 'mode = "full"')
    job = job.replace(
        "tensor_parallel_degree = 4", "pipeline_parallel_degree = 8\ntensor_parallel_degree = 8"
    ).replace("local_batch_size = 2", "local_batch_size = 16")
    one = imported(job)
    split, memory = one.parallelism, one.memory
    assert (split.pipeline, split.tensor, split.data, one.num_gpus) == (8, 8, 8, 512)
    assert (split.first_stage_layers, split.last_stage_layers) == (15, 15)
    assert (memory.zero_stage, memory.reduce_every_microbatch) == (3, False)
    assert memory.reshard_after_forward is False
    assert simulate_memory(one).fullest.peak_bytes > 0
    always = job.replace("[parallelism]", '[parallelism]\nfsdp_reshard_after_forward = "always"')
    assert imported(always).memory.reshard_after_forward is True
    even = text_of(job.replace('"405B"', '"8B"').replace("8192", "4096"))
    assert "Et*4|t*5|(t*4|)*5t*3L" in even


FLOAT8 = """
[float8]
enable_fsdp_float8_all_gather = true
precompute_float8_dynamic_scale_for_fsdp = true
filter_fqns = ["output"]
"""


def test_a_converter_to_float8_computes_and_gathers_in_fp8() -> None:
    job = JOB.replace("tensor_parallel_degree = 4", "tensor_parallel_degree = 1")
    job = job.replace('flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]')
    text, scenario = text_of(job + FLOAT8), imported(job + FLOAT8)
    assert (scenario.precision.compute, scenario.cluster) == ("fp8", "h100_sxm")
    assert scenario.precision.fp8_recipe == "tensorwise"
    assert scenario.precision.fp8_parameters
    assert "8 bits" not in text
    assert imported(job.replace("degree = 1", "degree = 4")).precision.compute == "fp8"
    assert not imported(job).precision.fp8_parameters
    assert "# - float8.filter_fqns: the output layer also computes in 8 bits" in text_of(job)


ALONE = JOB.replace("tensor_parallel_degree = 4", "tensor_parallel_degree = 1") + FLOAT8
ALONE = ALONE.replace('flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]')
VARIANTS = {
    "eager float8": ALONE.replace("compile = true", ""),
    "float8 without sequence parallelism": ALONE.replace(
        "degree = 1", "degree = 4\nenable_sequence_parallel = false"
    ),
    "float8 of rows": ALONE.replace("[float8]", "[float8]\nrecipe_name = 'rowwise'"),
    "another float8": ALONE.replace('["float8"]', '["mx"]'),
    "asynchronous": JOB.replace("inside a node", "\nenable_async_tensor_parallel = true"),
    "replicas alone": JOB.replace("shard_degree = 8", "replicate_degree = 8"),
    "shards of one": JOB.replace(
        "shard_degree = 8", "shard_degree = 1\ndata_parallel_replicate_degree = 2"
    ),
    "replicas of shards": JOB.replace(
        "shard_degree = 8",
        "shard_degree = 4\ndata_parallel_replicate_degree = 2\n"
        'fsdp_reshard_after_forward = "never"',
    ),
}
WRONG = {
    "an open number of ranks": JOB.replace("degree = 8", "degree = -1"),
    "an unknown key": JOB.replace("seq_len", "sequ_len"),
    "a key without a section": "steps = 3\n" + JOB,
    "invalid TOML": JOB + "[",
    "an unknown flavor": JOB.replace('"8B"', '"2B"'),
    "an unknown schedule": JOB.replace(
        "tensor_parallel_degree = 4",
        'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "AutoSchedule"',
    ),
    "text as a flag": JOB.replace(
        "tensor_parallel_degree", 'enable_async_tensor_parallel = "on"\ntensor_parallel_degree'
    ),
    "a list as a name": JOB.replace('"8B"', '["8B"]'),
    "a list as a policy": JOB.replace(
        "[parallelism]", "[parallelism]\nfsdp_reshard_after_forward = ['never']"
    ),
    "a number of converters": JOB.replace('flavor = "8B"', 'flavor = "8B"\nconverters = 1'),
    "text as an integer": JOB.replace("= 4  #", '= "4"  #'),
    "layers that do not divide": JOB.replace(
        "tensor_parallel_degree = 4",
        "pipeline_parallel_degree = 4\npipeline_parallel_layers_per_stage = 3\n"
        'pipeline_parallel_schedule = "Interleaved1F1B"',
    ),
}


def test_context_parallelism_is_mapped() -> None:
    job = JOB.replace("tensor_parallel_degree = 4", "context_parallel_degree = 2")
    split = imported(job).parallelism
    assert (split.context, split.context_communication) == (2, "all_gather")
    with pytest.raises(InputError, match="context_parallel_rotate_method is x"):
        text_of(job.replace("= 2 ", "= 2\ncontext_parallel_rotate_method = 'x' "))


def test_op_level_recompute_saves_every_second_product_and_attention() -> None:
    policy = imported(JOB.replace('"2"', '"op"')).recompute
    assert (policy.strategy, policy.saved_ops) == ("ops", DEFAULT_SAVED_OPS)
    with pytest.raises(InputError, match="write op, or 2"):
        text_of(JOB.replace('"2"', '"ops"'))


def test_every_key_is_in_exactly_one_list() -> None:
    lists = MAPPED.keys(), TABLE.not_modelled.keys(), TABLE.without_effect
    assert sum(map(len, lists)) == len(set().union(*lists))


def test_an_unknown_model_is_answered_with_a_similar_one() -> None:
    with pytest.raises(AttributeError, match="did you mean llama3_70b"):
        models.llama_70b  # noqa: B018 (the attribute is what is tested)


@pytest.mark.parametrize("text", ["", "[comm]\n", "[checkpoint]\nfolder = 'x'\n"])
def test_a_file_without_a_key_that_sets_a_field_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="E741 has no key of a job of torchtitan"):
        import_torchtitan(written("job.toml", text), gpus=8)

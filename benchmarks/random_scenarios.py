"""Random legal scenarios of small models, as plain values.

`python random_scenarios.py KIND NUMBER SEED` prints the path of the simtrain that checks them, then
one scenario per line as JSON. Of the kind "random" each field is drawn to fit the fields before it,
and nearly every draw is legal. Of the kind "modern" the scenarios merge many fields' cases.
"""

import json
import random
import sys
from collections.abc import Iterator
from itertools import chain, count, islice
from typing import Any

from pydantic import ValidationError

import simtrain
from simtrain.scenario import check_scenario

Values = dict[str, Any]

# Fused attention is mostly drawn on the A100; Trainiums lack a host link.
_FUSED_CLUSTER = "a100_sxm4_80gb"
_CLUSTERS = (*[_FUSED_CLUSTER] * 7, "h100_sxm", "h200_sxm", "trn1", "trn2")
# With small memories `auto` has to choose. 2.1 GiB of each are not available to tensors.
_MEMORIES = ("2600 MiB", "3 GiB", "4 GiB", "6 GiB", "10 GiB", "16 GiB")
_MOST_LAYERS_OF_CHUNK = 8
_FEWEST_LEGAL_SHARE = 0.1


def random_scenario(rng: random.Random) -> Values:
    """Draw one scenario, as values for `Scenario.model_validate`."""
    cluster = rng.choice(_CLUSTERS)
    split, overlap_pipeline = _parallelism(rng)
    chunk_layers, num_layers = _stage_layers(rng, split)
    schedule = "interleaved" if split["interleave"] > 1 else rng.choice(["gpipe", "1f1b"])
    micro, num_microbatches = rng.choice([1, 1, 2, 3, 4]), _num_microbatches(rng, split)
    scenario: Values = {
        "model": _model(rng, split, num_layers),
        "parallelism": split,
        "batch": {"micro": micro, "global": micro * num_microbatches * split["data"]},
        "recompute": _recompute(rng, split, chunk_layers, schedule, num_microbatches),
        "memory": _memory(rng, split),
        "attention_backend": _attention_backend(rng, cluster),
        "precision": _precision(rng),
        "overlap": _flags(rng, "tensor_parallel", "data_parallel") | {"pipeline": overlap_pipeline},
        "cluster": cluster,
    }
    if schedule == "gpipe" or rng.random() < 0.6:
        scenario["schedule"] = schedule
    if rng.random() < (0.9 if "auto" in str(scenario["recompute"]) else 0.3):
        scenario["hardware"] = {"gpu": {"memory_capacity": rng.choice(_MEMORIES)}}
    return scenario


def _parallelism(rng: random.Random) -> tuple[Values, bool]:
    """Draw the parallelism, without the layers of end stages, and whether transfers overlap."""
    tensor = rng.choice([1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8])
    pipeline = rng.choice([1, 1, 2, 2, 3, 4, 5, 6])
    interleave = rng.choice([1, 1, 2, 3, 4]) if pipeline > 1 else 1
    sequence_parallel = tensor > 1 and rng.random() < 0.5
    split: Values = {
        "tensor": tensor,
        "sequence_parallel": sequence_parallel,
        "pipeline": pipeline,
        "interleave": interleave,
        "data": rng.choice([1, 2, 4]),
    }
    if rng.random() < 0.6:
        split["scatter_gather"] = not sequence_parallel and rng.random() < 0.5
    # Two stages are interleaved only with asynchronous transfers (rule E310).
    overlap_pipeline = interleave > 1 and (pipeline == 2 or rng.random() < 0.5)
    return split, overlap_pipeline


def _stage_layers(rng: random.Random, split: Values) -> tuple[list[int], int]:
    """Draw the layers of each kind of chunk; return them, and the number of layers of the model.

    Adds `first_stage_layers` and `last_stage_layers` to `split` if they are drawn.
    """

    def chunk_layers() -> int:
        return rng.choice([1, 1, 2, 2, 3, rng.randint(4, _MOST_LAYERS_OF_CHUNK)])

    pipeline, interleave = split["pipeline"], split["interleave"]
    own = {
        name: chunk_layers() * interleave
        for name in ("first_stage_layers", "last_stage_layers")
        if pipeline > 1 and rng.random() < 0.3
    }
    split |= own
    even = chunk_layers()
    sizes = [layers // interleave for layers in own.values()]
    sizes += [even] * (len(own) < pipeline)
    return sizes, sum(own.values()) + (pipeline - len(own)) * interleave * even


def _model(rng: random.Random, split: Values, num_layers: int) -> Values:
    tensor = split["tensor"]
    heads = tensor * rng.choice([1, 2, 3, 4, 8])
    model: Values = {
        "num_layers": num_layers,
        "num_attention_heads": heads,
        "hidden_size": heads * rng.choice([8, 32, 64, 64, 80, 96, 128, 256]),
        "seq_length": tensor * rng.choice([32, 100, 128, 256, 384, 512, 1024]),
    }
    if not split["sequence_parallel"]:
        model["seq_length"] += rng.choice([0, 0, 1, 7])
    # The default is 4 hidden_size, which tensor always divides.
    if rng.random() < 0.4:
        model["ffn_hidden_size"] = tensor * rng.choice([24, 128, 500, 1024, 4096])
    # The default is 51200, which only these sizes divide.
    if tensor not in (1, 2, 4, 5, 8) or rng.random() < 0.6:
        model["vocab_size"] = tensor * rng.choice([1, 128, 1000, 6400, 32000])
    return model | _flags(rng, "tied_embeddings")


def _num_microbatches(rng: random.Random, split: Values) -> int:
    """Draw the microbatches per replica. Interleaving requires a multiple of the stages."""
    if split["interleave"] > 1:
        return int(split["pipeline"]) * rng.choice([1, 1, 2, 3])
    return rng.randint(1, 10)


def _recompute(
    rng: random.Random,
    split: Values,
    chunk_layers: list[int],
    schedule: str,
    num_microbatches: int,
) -> Values | str:
    """Draw a policy, or only the name of its strategy."""
    strategy = rng.choice(["none", "selective", "selective", "full", "full", "full", "auto"])
    if rng.random() < 0.2:
        return strategy
    policy: Values = {"strategy": strategy}
    if strategy == "full":
        policy["method"] = rng.choice(["uniform", "block"])
        policy["num_layers"] = rng.randint(1, max(chunk_layers))
    if strategy in ("selective", "full") and split["pipeline"] > 1:
        most = _most_outstanding(split, schedule, num_microbatches)
        policy["keep_microbatches"] = rng.choice([0, "auto", rng.randint(0, most)])
    return policy


def _most_outstanding(split: Values, schedule: str, num_microbatches: int) -> int:
    """Return the most forward passes outstanding on the first stage (rule E324)."""
    pipeline, interleave = split["pipeline"], split["interleave"]
    forwards = num_microbatches * interleave
    most = {
        "gpipe": forwards,
        "1f1b": pipeline,
        "interleaved": 2 * (pipeline - 1) + (interleave - 1) * pipeline + 1,
    }
    return int(min(most[schedule], forwards))


def _memory(rng: random.Random, split: Values) -> Values:
    # ZeRO needs replicas (rule E326), and stages 2 and 3 a pipeline of one stage (rule E325).
    most = 0 if split["data"] == 1 else 1 if split["pipeline"] > 1 else 3
    memory: Values = {"zero_stage": rng.randint(0, most)}
    if rng.random() < 0.25:
        memory["offload_optimizer"] = True
    return memory | _flags(rng, "deallocate_outputs")


def _attention_backend(rng: random.Random, cluster: str) -> str:
    fused_share = 0.4 if cluster == _FUSED_CLUSTER else 0.05
    return "fused" if rng.random() < fused_share else "unfused"


def _precision(rng: random.Random) -> Values:
    compute = rng.choice(["bf16", "fp16"])
    return {"compute": compute, "gradients": rng.choice(["fp32", compute])}


def _flags(rng: random.Random, *names: str) -> Values:
    """Draw true, false or no value for each flag."""
    drawn = {name: rng.choice([True, False, None]) for name in names}
    return {name: value for name, value in drawn.items() if value is not None}


def is_legal(values: Values) -> bool:
    """Return whether the framework accepts the scenario; rules of clusters are not checked."""
    try:
        check_scenario(simtrain.Scenario.model_validate(values))
    except (simtrain.InputError, ValidationError):
        return False
    return True


def legal_scenarios(number: int, seed: int) -> Iterator[Values]:
    """Draw scenarios until `number` are legal, and yield these with a name.

    Raises:
        RuntimeError: nearly all draws are illegal, because fields or rules have changed.
    """
    rng = random.Random(seed)
    num_draws = num_legal = 0
    while num_legal < number:
        values = random_scenario(rng)
        num_draws += 1
        if is_legal(values):
            num_legal += 1
            yield {"name": f"random-{num_legal - 1}"} | values
        elif num_draws > 100 and num_legal < _FEWEST_LEGAL_SHARE * num_draws:
            raise RuntimeError(f"{num_legal} of {num_draws} random scenarios are legal: {values}")


def modern_scenarios(number: int, seed: int) -> Iterator[Values]:
    """Yield scenarios that together have every field and choice, some 37 for each seed from this
    one on.
    """
    # Of the tree whose simtrain checks them: another revision may have other fields.
    from tests.helpers.merged_cases import merged_scenarios

    scenarios = chain.from_iterable(map(merged_scenarios, count(seed)))
    for index, scenario in enumerate(islice(scenarios, number)):
        values = json.loads(scenario.model_dump_json(by_alias=True, exclude_unset=True))
        yield values | {"name": f"modern-{index}"}


DRAWS = {"random": legal_scenarios, "modern": modern_scenarios}


def main() -> None:
    print(simtrain.__file__)
    kind, number, seed = sys.argv[1:]
    for scenario in DRAWS[kind](int(number), int(seed)):
        print(json.dumps(scenario))


if __name__ == "__main__":
    main()

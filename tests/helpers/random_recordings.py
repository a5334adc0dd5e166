"""Random recordings of torch programs, and scenarios that run them.

A recording is a file, so none of this needs torch. Ops have shapes that torch would give them, also
empty ones; storages live from an op to a later one, so that the bytes and their names agree.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simtrain.guests.recording.program import RecordedProgram, write_program

Values = dict[str, Any]

_CLUSTERS = "a100_sxm4_80gb", "h100_sxm", "h200_sxm", "b200_sxm"
_STACKS = "torchtitan", "torchtitan_compiled", "eager", "megatron_core"
_PASSES = "forward", "backward", "optimizer"
_SIZES = 0, 1, 3, 64, 64, 256, 1000, 4096
MODULES = "", "head", "layers.*.mlp.up", "layers.*.attention", "encoder.blocks.*.norm"
_POINTWISE = "aten.add", "aten.gelu", "aten.native_layer_norm", "aten._softmax", "mine.scan"
_COLLECTIVES = (
    *("c10d._allgather_base_", "c10d._reduce_scatter_base_", "c10d.allreduce_", "c10d.send"),
    *("_c10d_functional.all_reduce", "_c10d_functional.all_to_all_single", "c10d.broadcast_"),
)


def recorded_scenarios(count: int, seed: int, folder: Path) -> Iterator[Values]:
    """Write recordings to a folder, and yield scenarios with them."""
    rng = random.Random(seed)
    for number in range(count):
        file = folder / f"{seed}-{number}.program.json.gz"
        write_program(random_recording(rng), file)
        yield {"name": f"recorded-{seed}-{number}", "program": str(file)} | _settings(rng)


def _settings(rng: random.Random) -> Values:
    """Draw what a scenario with a recording may set."""
    host_s = rng.choice(["0 s", "5 us"])
    values: Values = {
        "cluster": rng.choice(_CLUSTERS),
        "software": {"stack": rng.choice(_STACKS), "host_issue": host_s, "host_call": "0 s"},
    }
    if rng.random() < 0.4:
        values["hardware"] = {"scale": {"network_bandwidth": rng.choice([0.5, 2.0])}}
    if rng.random() < 0.5:
        values["variation"] = {"kernels": 0.05, "slow": {"factor": 1.5}}
    return values


def random_recording(rng: random.Random) -> RecordedProgram:
    """Draw the recording of a step on one to 64 ranks."""
    tensor, data = rng.choice([1, 1, 2, 8]), rng.choice([1, 2, 8])
    gpus = tensor * data
    groups = [[*range(tensor)], [*range(0, gpus, tensor)], [*range(gpus)]]
    dtype = rng.choice(["bf16", "bf16", "f32", "f16"])
    passes = {name: _pass(rng, name, len(groups), dtype) for name in _PASSES}
    _add_memory(rng, passes)
    sequences = rng.choice([1, 2, 4])
    states = {name: rng.randrange(1 << 30) for name in ("parameters_bytes", "optimizer_bytes")}
    data_of_program = {
        "version": 1,
        "torch": "2.13.0",
        "f32_products": rng.choice(["fp32", "tf32"]),
        "command": "simtrain import --record drawn.py:main",
        "gpus": gpus,
        "tensor": tensor,
        "sequences": sequences,
        "tokens": rng.choice([1, 128, 2048]),
        "microbatches": rng.choice([1, 1, 2, 5]),
        "num_parameters": 1000,
        "num_trained": rng.choice([10, 1000]),
        "states": states | {"other_bytes": rng.randrange(1 << 20)},
        "groups": groups,
        "group_streams": rng.choice([[], [2], [2, 3]]),
    }
    return RecordedProgram.model_validate(data_of_program | passes)


def _pass(rng: random.Random, name: str, num_groups: int, dtype: str) -> list[Values]:
    """Draw the runs of a pass, some of them repeated. The optimizer may have none."""
    if name == "optimizer" and rng.random() < 0.2:
        return []
    runs: list[Values] = [{"count": 1, "ops": [_product(rng, dtype, 256, 64)]}]
    place = 1
    for _ in range(rng.randrange(4)):
        count, length = rng.choice([1, 1, 2, 7]), rng.randint(1, 6)
        ops = [_op(rng, place + number, num_groups, dtype, name) for number in range(length)]
        runs.append({"count": count, "ops": ops})
        place += count * length
    return runs


def _op(rng: random.Random, place: int, num_groups: int, dtype: str, phase: str) -> Values:
    """Draw an op of a pass that may wait for `place` earlier ones."""
    draws = [_product, _product, _pointwise, _attention, _convolution, _lookup, _many]
    if rng.random() < 0.25:
        op = _collective(rng, num_groups, dtype)
    else:
        op = rng.choice(draws)(rng, dtype, rng.choice(_SIZES), rng.choice(_SIZES))
    op["module"] = rng.choice(MODULES)
    op["again"] = phase == "backward" and rng.random() < 0.2
    if rng.random() < 0.3:
        op["waits"] = sorted(rng.sample(range(1, place + 1), min(place, rng.randint(1, 2))))
    return op


def _product(rng: random.Random, dtype: str, m: int, n: int) -> Values:
    k, b, prime = rng.choice(_SIZES), rng.choice([1, 4]), rng.choice(["", "'"])
    name = rng.choice(["mm", "addmm", "bmm", "baddbmm", "_grouped_mm"])
    batch = f"{b}," if "b" in name else ""
    left, right = f"{dtype}[{batch}{m},{k}]", f"{dtype}[{batch}{k},{n}]{prime}"
    written = f"{dtype}[{batch}{m},{n}]"
    if name == "_grouped_mm":
        right = f"{dtype}[{b},{k},{n}]"
    bias = [f"{dtype}[{n}]"] * name.count("add")
    return {"op": f"aten.{name}", "reads": [*bias, left, right], "writes": [written]}


def _pointwise(rng: random.Random, dtype: str, m: int, n: int) -> Values:
    text = rng.choice([f"{dtype}[{m},{n}]", f"{dtype}[]", f"{dtype}[{m},{n}*]"])
    name = rng.choice([*_POINTWISE, "aten.empty", "aten.zeros"])
    stream = rng.choice([0, 0, 1, 2])
    return {"op": name, "reads": [text], "writes": [text.replace("*", "")], "stream": stream}


def _attention(rng: random.Random, dtype: str, m: int, n: int) -> Values:
    heads = [f"{dtype}[2,4,{m},64]", *[f"{dtype}[2,2,{n},64]"] * 2]
    options = {"is_causal": rng.random() < 0.5}
    if rng.random() < 0.5:
        writes = [heads[0], f"f32[2,4,{m}]"]
        return {"op": "simtrain.attention", "reads": heads, "writes": writes, "options": options}
    reads = [heads[0], *heads, heads[0], f"f32[2,4,{m}]"]
    name = "simtrain.attention_backward"
    return {"op": name, "reads": reads, "writes": heads, "options": options}


def _convolution(rng: random.Random, dtype: str, m: int, n: int) -> Values:
    x, weight, y = f"{dtype}[2,8,{m},{n}]", f"{dtype}[16,8,3,3]", f"{dtype}[2,16,{m},{n}]"
    if rng.random() < 0.5:
        return {"op": "aten.convolution", "reads": [x, weight], "writes": [y]}
    writes = rng.choice([[x, weight], [weight], [f"{dtype}[16]"]])
    return {"op": "aten.convolution_backward", "reads": [y, x, weight], "writes": writes}


def _lookup(rng: random.Random, dtype: str, m: int, n: int) -> Values:
    reads, writes = [f"{dtype}[1000,{n}]", f"i64[{m}]"], [f"{dtype}[{m},{n}]"]
    return {"op": "aten.embedding", "reads": reads, "writes": writes}


def _many(rng: random.Random, dtype: str, m: int, n: int) -> Values:
    texts = [f"24 x {dtype}[{m}]", f"{dtype}[{m},{n}]"]
    return {"op": "aten._foreach_mul_", "reads": texts, "writes": texts}


def _collective(rng: random.Random, num_groups: int, dtype: str) -> Values:
    m, n = rng.choice(_SIZES), rng.choice(_SIZES)
    reads, writes = [f"{dtype}[{m}]"], [f"{dtype}[{m},{n}]"]
    if rng.random() < 0.5:
        reads, writes = writes, reads
    place = {"stream": rng.choice([0, 1, 2, 3]), "group": rng.randrange(num_groups)}
    return {"op": rng.choice(_COLLECTIVES), "reads": reads, "writes": writes} | place


def _add_memory(rng: random.Random, passes: dict[str, list[Values]]) -> None:
    """Let some ops make storages, and later ones free them: by runs, with their names."""
    lines = [
        (phase, run, op) for phase, runs in passes.items() for run in runs for op in run["ops"]
    ]
    for place, (phase, run, op) in enumerate(lines):
        if rng.random() < 0.4:
            continue
        count, num_bytes = run["count"], rng.randrange(1, 1 << 22)
        later = lines[place + 1 :]
        # Each repetition frees as much as the run has made for it.
        ends = [
            (of_end, op_of_end)
            for of_end, other, op_of_end in later
            if other["count"] == count and (other is not run or of_end == phase)
        ]
        of_end, end = rng.choice(ends) if ends and rng.random() < 0.8 else ("", {})
        _add(op, "makes_bytes", num_bytes)
        is_gradient = phase == "backward" and of_end == "optimizer"
        if is_gradient:
            _add(op, "gradient_bytes", num_bytes)
        if end:
            _add(end, "frees_bytes", num_bytes)
            _add(end, "freed_gradient_bytes", num_bytes * is_gradient)


def _add(values: Values, name: str, number: int) -> None:
    values[name] = values.get(name, 0) + number

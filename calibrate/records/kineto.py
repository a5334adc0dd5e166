"""Reads traces of PyTorch's profiler (Kineto) as records of products, attention and collectives.

A kernel is matched with the op that launched it by its `External id`. Shapes need `record_shapes`;
sizes of collectives are in the traces of torch 2.3 and later. A run's kernels are slower than those
of a benchmark: they run beside collectives, at the clock of a hot GPU, and collectives wait for the
slowest rank, so that only the faster half of their times counts.

Sources: pytorch/kineto, libkineto/src/output_json.cpp; torch/csrc/distributed/c10d/
ParamCommsUtils.hpp (arguments of collectives).
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from calibrate.records.schema import (
    AttentionRecord,
    CollectiveOp,
    CollectiveRecord,
    GemmRecord,
    Header,
    Layout,
    Measurement,
    Timing,
)
from simtrain.guests.traces.events import (
    Event,
    arguments_of,
    duration_s,
    no_trace,
    read_events,
)
from simtrain.guests.traces.ranks import LAUNCH_CATEGORIES, launching_ops

_CATEGORIES = {"kernel", "cpu_op", *LAUNCH_CATEGORIES}
_TYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}
_ELEMENT_BYTES = {"bfloat16": 2, "half": 2, "float": 4, "byte": 1, "char": 1, "double": 8}
_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Ops that are a product, and the position of its first factor."""
_ATTENTION = re.compile(
    r"aten::_scaled_dot_product_(?:flash|cudnn|efficient)_attention(?P<backward>_backward)?"
)
_COLLECTIVES: dict[str, tuple[CollectiveOp, str]] = {
    "allreduce": ("all_reduce", "In msg nelems"),
    "all_reduce": ("all_reduce", "In msg nelems"),
    "_allgather_base": ("all_gather", "Out msg nelems"),
    "allgather_into_tensor_coalesced": ("all_gather", "Out msg nelems"),
    "_reduce_scatter_base": ("reduce_scatter", "In msg nelems"),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", "In msg nelems"),
    "all_to_all": ("all_to_all", "In msg nelems"),
    "all_to_allv": ("all_to_all", "In msg nelems"),
}
"""Collectives by torch's names, and the argument that has the elements of the whole array."""


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    """What a trace says.

    Args:
        header: the machine.
        records: one for each shape, with the times of all its kernels.
        left_out: kernels that make no record, and their seconds, by reason.
    """

    header: Header
    records: tuple[Measurement, ...]
    left_out: Mapping[str, float]


def read_trace(path: Path, gpus_per_node: int = 8) -> KinetoTrace:
    """Read a trace, packed with gzip or not.

    Raises:
        InputError: E726, it is no trace, or has no kernel of a GPU.
    """
    trace = read_events(path, _CATEGORIES)
    events = trace.events
    kernels = [event for event in events if event.get("cat") == "kernel" and duration_s(event)]
    if not kernels:
        reason = "it has no kernels: profile with ProfilerActivity.CUDA"
        raise no_trace(path, reason)
    op_of = launching_ops(events)
    times: dict[tuple[type[BaseModel], str], list[float]] = defaultdict(list)
    works: dict[tuple[type[BaseModel], str], dict[str, Any]] = {}
    left_out: dict[str, float] = defaultdict(float)
    of_ops: dict[int, tuple[Event, list[float]]] = {}
    for kernel in kernels:
        if "nccl" in str(kernel.get("name", "")).lower():
            collective = _collective(arguments_of(kernel), gpus_per_node)
            if isinstance(collective, str):
                left_out[collective] += duration_s(kernel)
            else:
                _note(times, works, CollectiveRecord, collective, duration_s(kernel))
        elif op := op_of(kernel):
            of_ops.setdefault(id(op), (op, []))[1].append(duration_s(kernel))
        else:
            left_out["kernels whose op is not in the trace"] += duration_s(kernel)
    for op, seconds in of_ops.values():
        work = _work(op)
        if isinstance(work, str):
            left_out[work] += math.fsum(seconds)
        else:
            _note(times, works, *work, math.fsum(seconds))
    records = [*_records(times, works)]
    return KinetoTrace(
        _header(trace.header, records, gpus_per_node, path), tuple(records), dict(left_out)
    )


def _collective(arguments: Mapping[str, Any], gpus_per_node: int) -> dict[str, Any] | str:
    """Return the work of a collective, or why it makes no record."""
    name = str(arguments.get("Collective name"))
    if name not in _COLLECTIVES:
        return "collectives without sizes, or between two ranks"
    op, elements = _COLLECTIVES[name]
    size = _ELEMENT_BYTES.get(str(arguments.get("dtype")).lower())
    count: Any = arguments.get(elements)
    ranks: Any = arguments.get("Group size")
    if not size or not _is_count(count) or not _is_count(ranks) or ranks < 2:
        return "collectives without sizes, or between two ranks"
    members = str(arguments.get("Process Group Ranks"))
    if not re.fullmatch(r"\[\d{1,9}(, \d{1,9})*\]", members):
        nodes = 1 if ranks <= gpus_per_node else math.ceil(ranks / gpus_per_node)
    else:
        nodes = len({rank // gpus_per_node for rank in json.loads(members)})
    return {"op": op, "array_bytes": size * count, "num_ranks": ranks, "num_nodes": nodes}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _work(op: Mapping[str, Any]) -> tuple[type[BaseModel], dict[str, Any]] | str:
    """Return what an op computes, or why it makes no record."""
    name, arguments = str(op.get("name")), arguments_of(op)
    shapes: Any = arguments.get("Input Dims")
    types: Any = arguments.get("Input type")
    attention = _ATTENTION.fullmatch(name)
    if name not in _PRODUCTS and not attention:
        return "kernels of other ops"
    if not isinstance(shapes, list) or not isinstance(types, list):
        return "kernels without shapes: profile with record_shapes=True"
    first = _PRODUCTS.get(name, 0)
    strides = arguments.get("Input Strides")
    try:
        dtype = _TYPES[types[first]]
        if attention:
            # Backward, the gradient of the output is the first input, as large as the queries.
            batch, heads, tokens, channels = shapes[0]
            if any(size != tokens for size in (shapes[1][2], shapes[2][2])):
                return "attention between sequences of different lengths"
            work = {"heads": batch * heads, "seq_length": tokens, "head_size": channels}
            way = "backward" if attention["backward"] else "forward"
            return AttentionRecord, work | {"way": way}
        left, right = shapes[first : first + 2]
        (*batch_of, m, k), n = left, right[-1]
        layout = _layout(strides[first : first + 2]) if isinstance(strides, list) else "TN"
    except (KeyError, ValueError, TypeError, IndexError):
        return "products in other data types, or with shapes that are not printed"
    work = {"m": m, "n": n, "k": k, "batch": math.prod(batch_of), "layout": layout, "dtype": dtype}
    return GemmRecord, work


def _layout(strides: Sequence[Sequence[int]]) -> Layout:
    """Return the layout of a product's factors: contiguous along their last dimension or not."""
    left_is_plain, right_is_plain = (factor[-1] == 1 for factor in strides)
    if not left_is_plain:
        return "NT"
    return "NN" if right_is_plain else "TN"


def _note(
    times: dict[tuple[type[BaseModel], str], list[float]],
    works: dict[tuple[type[BaseModel], str], dict[str, Any]],
    kind: type[BaseModel],
    work: dict[str, Any],
    seconds: float,
) -> None:
    key = kind, repr(sorted(work.items()))
    works[key] = work
    times[key].append(seconds)


def _records(
    times: Mapping[tuple[type[BaseModel], str], list[float]],
    works: Mapping[tuple[type[BaseModel], str], dict[str, Any]],
) -> Iterator[Measurement]:
    """Yield a record for each work that has times a record can have."""
    attention: dict[str, dict[str, Any]] = defaultdict(dict)
    sizes: dict[str, dict[str, Any]] = {}
    for (kind, key), seconds in times.items():
        work = dict(works[kind, key])
        try:
            if kind is CollectiveRecord:
                yield CollectiveRecord(
                    **work, time=_timing(sorted(seconds)[: -(-len(seconds) // 2)])
                )
            elif kind is GemmRecord:
                yield GemmRecord(**work, time=_timing(seconds))
            else:
                way = work.pop("way")
                attention[repr(work)][way] = _timing(seconds)
                sizes[repr(work)] = work
        except ValidationError:  # a size of 0, or above all that exist
            continue
    for key, ways in attention.items():
        if len(ways) == 2:
            yield AttentionRecord(**sizes[key], **ways)


def _timing(seconds: Sequence[float]) -> Timing:
    if len(seconds) == 1:
        return Timing(median_s=seconds[0], spread_s=0.0, num_samples=1)
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median_s=middle, spread_s=(high - low) / 2, num_samples=len(seconds))


def _header(
    header: Mapping[str, Any], records: Sequence[Measurement], gpus_per_node: int, path: Path
) -> Header:
    """Describe the machine of a trace.

    Raises:
        InputError: E726, it does not say which device it is.
    """
    devices, world = header.get("deviceProperties"), header.get("distributedInfo")
    ranks: Any = world.get("world_size") if isinstance(world, dict) else None
    size = ranks if _is_count(ranks) else 1
    products = Counter(record.dtype for record in records if isinstance(record, GemmRecord))
    compute: Any = products.most_common(1)[0][0] if products else "bf16"
    try:
        device: Any = devices[0] if isinstance(devices, list) else None
        return Header(
            device=device["name"],
            backend="nccl" if size > 1 else "none",
            num_ranks=size,
            num_nodes=math.ceil(size / gpus_per_node),
            num_sms=device["numSms"],
            memory_bytes=device["totalGlobalMem"],
            date="not in the trace",
            command=f"fit {path.name}",
            software={"torch": "not in the trace", "cuda": "not in the trace"},
            compute=compute,
        )
    except (TypeError, KeyError, IndexError, ValidationError) as error:
        reason = "it does not say which device ran it (deviceProperties)"
        raise no_trace(path, reason) from error

"""Times collectives between the ranks: alone, several at once, and during matrix products.

Array sizes follow nccl-tests: the array that an all-reduce reduces, that an all-gather leaves on
each rank, that a reduce-scatter and an all-to-all read on each rank, and that each rank sends to
the next one.

Collectives of NCCL are timed one after another, as nccl-tests does. Threads of gloo sleep and wake:
back to back they are awake for seconds, then asleep for seconds, which takes several times as long.
So gloo's are timed in a row with a small product before each, as in a layer: threads wake up, and
ranks that are late delay the others, as they do there. The products' own time is taken off.
"""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from calibrate.benchmarks.products import DTYPES, product_runs
from calibrate.benchmarks.ranks import Ranks
from calibrate.benchmarks.sizes import Sizes
from calibrate.benchmarks.timing import Run, Timer, in_turn, random_data, spin, summary
from calibrate.records.file import MeasurementPoint
from calibrate.records.schema import (
    CollectiveOp,
    CollectiveRecord,
    GemmWork,
    OverlapRecord,
    Timing,
)
from calibrate.torch_model.parallel import (
    all_gather_single,
    own_group,
    reduce_scatter_single,
)

_BESIDE_S = 20e-3
_BESIDE_SAMPLES = 10
_IN_A_ROW = 8
_LEAST_PART = 0.05
_NUM_BUDGETS = 2
"""Time budgets of a CPU's collective, which varies more than any other time."""
Start = Callable[[], list[dist.Work]]
"""Begins collectives and returns at once."""


@dataclass(frozen=True, slots=True)
class Members:
    """Groups of ranks, all of one size, that run the same collective at the same time."""

    groups: tuple[tuple[int, ...], ...]
    num_nodes: int

    @property
    def num_ranks(self) -> int:
        return len(self.groups[0])


def collective_points(sizes: Sizes, timer: Timer) -> list[MeasurementPoint]:
    """Points of every collective, group and size; none for one process."""
    layer = sizes.products[0]
    dtype, compute = DTYPES[sizes.compute], sizes.compute
    before = GemmWork(m=layer.tokens, n=layer.hidden, k=layer.hidden, layout="NN", dtype=compute)
    patient = replace(timer, budget_s=_NUM_BUDGETS * timer.budget_s)

    group_of = cache(own_group)

    def measure(op: str, num_bytes: int, members: Members) -> dict[str, Any]:
        group, runs = group_of(members.groups), list[Run]()
        if group is not None:
            data = random_data(timer.device, dtype)
            count = _num_elements(num_bytes, members.num_ranks, dtype)
            copies = range(timer.copies(num_bytes))
            runs = [_run_of(op, data.take(count).clone(), group) for _ in copies]
        if timer.device == "cuda":
            return {"time": timer.time(runs)}
        multiply, run = in_turn(product_runs(before, timer)), in_turn(runs)
        return {"time": _time_between(multiply, run, patient)}

    # A profile can do without all-to-alls.
    points, ops = [], sorted(get_args(CollectiveOp), key="all_to_all".__eq__)
    for members, op, size in product(groups_that_matter(timer.ranks), ops, sizes.array_bytes):
        group = {"num_ranks": members.num_ranks, "num_groups": len(members.groups)}
        what = {"op": op, "array_bytes": size, **group, "num_nodes": members.num_nodes}
        points.append(MeasurementPoint(CollectiveRecord, what, partial(measure, op, size, members)))
    return points


def _time_between(multiply: Run, run: Run, timer: Timer) -> Timing:
    """Time a run that follows a product, many times in a row."""

    def alone() -> None:
        for _ in range(_IN_A_ROW):
            multiply()

    def both() -> None:
        for _ in range(_IN_A_ROW):
            multiply()
            run()

    without, time = timer.time_parts([alone, both])
    # A collective so fast that the products' noise hides it still takes some time.
    taken_s = max(time.median_s - without.median_s, _LEAST_PART * time.median_s) / _IN_A_ROW
    spread_s = math.hypot(time.spread_s, without.spread_s) / _IN_A_ROW
    return Timing(median_s=taken_s, spread_s=spread_s, num_samples=time.num_samples)


def groups_that_matter(ranks: Ranks) -> Iterator[Members]:
    """A group of 2, 4, ... and all ranks of a node; then across nodes.

    Groups across nodes: one rank of each node, all such groups at the same time, and all ranks.
    """
    powers = {1 << power for power in range(1, ranks.per_node.bit_length())}
    for size in sorted(powers | {ranks.per_node} - {1}):
        yield Members((tuple(range(size)),), 1)
    if ranks.num_nodes > 1:
        peers = tuple(tuple(range(i, ranks.size, ranks.per_node)) for i in range(ranks.per_node))
        yield Members(peers[:1], ranks.num_nodes)
        if ranks.per_node > 1:
            yield Members(peers, ranks.num_nodes)
            yield Members((tuple(range(ranks.size)),), ranks.num_nodes)


def _num_elements(num_bytes: int, num_ranks: int, dtype: torch.dtype) -> int:
    return math.ceil(num_bytes / dtype.itemsize / num_ranks) * num_ranks


def _ring_step(array: Tensor, group: dist.ProcessGroup | None) -> Run:
    """A ring: each rank sends to the next while the one before sends to it."""
    rank, ranks = dist.get_rank(group), dist.get_process_group_ranks(group)
    after, before = (ranks[(rank + step) % len(ranks)] for step in (1, -1))
    send = dist.P2POp(dist.isend, array, after, group)
    receive = dist.P2POp(dist.irecv, torch.empty_like(array), before, group)

    return lambda: _wait(dist.batch_isend_irecv([send, receive]))


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


def _run_of(op: str, array: Tensor, group: dist.ProcessGroup | None) -> Callable[..., Any]:
    """The op of an array of this rank in a group; None is the group of all ranks."""
    if op == "send_recv":
        return _ring_step(array, group)
    if op == "all_reduce":
        return partial(dist.all_reduce, array, group=group)
    if op == "all_to_all":
        return partial(dist.all_to_all_single, torch.empty_like(array), array, group=group)
    part = array.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone()
    if op == "all_gather":
        return partial(all_gather_single, array, part, group=group)
    return partial(reduce_scatter_single, part, array, group=group)


def overlap_points(sizes: Sizes, timer: Timer) -> list[MeasurementPoint]:
    """Points of products and collectives that overlap in a backward pass; none for one process.

    The all-reduce of a gradient overlaps a projection's product, the all-gather of a layer's input
    the widest input gradient, and the reduce-scatter of a gradient the widest weight gradient.
    """
    if timer.ranks.size == 1:
        return []
    tokens, hidden, wide = sizes.overlap.tokens, sizes.overlap.hidden, 4 * sizes.overlap.hidden
    compute, dtype = sizes.compute, DTYPES[sizes.compute]
    num_bytes, points = tokens * hidden * dtype.itemsize, []
    into_fp32 = compute != "fp32"
    projection = GemmWork(m=tokens, n=hidden, k=hidden, layout="NN", dtype=compute)
    weight = GemmWork(m=wide, n=hidden, k=tokens, layout="NT", dtype=compute, accumulate=into_fp32)
    for beside, op, work in (
        ("an all-reduce", "all_reduce", projection),
        ("an all-gather", "all_gather", projection.model_copy(update={"k": wide})),
        ("a reduce-scatter", "reduce_scatter", weight),
    ):
        size = f"{work.m} x {work.n} x {work.k}"
        what = f"{size} beside {beside} of {num_bytes} bytes over {timer.ranks.size} ranks"
        measure = partial(_measure_overlap, work, op, num_bytes, timer)
        points.append(MeasurementPoint(OverlapRecord, {"what": what}, measure))
    return points


def _measure_overlap(work: GemmWork, op: str, num_bytes: int, timer: Timer) -> dict[str, Any]:
    """Time both alone and together, for about as long, so that they always overlap."""
    products = product_runs(work, timer)
    dtype = DTYPES[work.dtype]
    count = _num_elements(num_bytes, timer.ranks.size, dtype)
    # Zeros stay finite however often they are added up.
    arrays = [torch.zeros(count, dtype=dtype, device=timer.device) for _ in range(4)]
    multiply_one = in_turn(products)
    start = in_turn([partial(_run_of(op, array, None), async_op=True) for array in arrays])
    alone = timer.time(products)
    collective_alone = timer.time([lambda: start().wait()])
    num_products = math.ceil(_BESIDE_S / alone.median_s)
    num_collectives = math.ceil(_BESIDE_S / collective_alone.median_s)

    def multiply() -> None:
        for _ in range(num_products):
            multiply_one()

    def start_all() -> list[dist.Work]:
        return [start() for _ in range(num_collectives)]

    beside = _cuda_beside if timer.device == "cuda" else _cpu_beside
    samples = []
    for _ in range(_BESIDE_SAMPLES):
        timer.ranks.meet()
        samples.append(timer.ranks.slowest(beside(multiply, start_all)))
    return {
        "compute_alone": alone,
        "compute_beside": summary([taken[0] / num_products for taken in samples]),
        "collective_alone": collective_alone,
        "collective_beside": summary([taken[1] / num_collectives for taken in samples]),
    }


def _cpu_beside(multiply: Run, start_all: Start) -> tuple[float, float]:
    """Time all products and all collectives, begun together; a thread waits for collectives."""

    def ended_s() -> float:
        _wait(works)
        return time.perf_counter()

    with ThreadPoolExecutor(max_workers=1) as waiter:
        begin_s = time.perf_counter()
        works = start_all()
        ended = waiter.submit(ended_s)
        multiply()
        taken_s = time.perf_counter() - begin_s
        return taken_s, ended.result() - begin_s


def _cuda_beside(multiply: Run, start_all: Start) -> tuple[float, float]:
    """Time the same on a GPU, with collectives on a stream of their own."""
    computing, sending = torch.cuda.current_stream(), torch.cuda.Stream()
    begin, computed, sent = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    torch.cuda.synchronize()
    spin(_BESIDE_S)
    begin.record()
    sending.wait_event(begin)
    with torch.cuda.stream(sending):
        _wait(start_all())
        sent.record(sending)
    multiply()
    computed.record(computing)
    torch.cuda.synchronize()
    return begin.elapsed_time(computed) / 1e3, begin.elapsed_time(sent) / 1e3

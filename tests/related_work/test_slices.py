"""TeraPipe's dynamic programme against all ways to cut a sequence, and simulated slices."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simtrain.errors import InputError
from simtrain.related_work.slices import best_microbatches, best_slices, find_slices
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from tests.helpers.toys import scenario_with

MODEL = {
    "num_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 4,
    "seq_length": 8192,
    "vocab_size": 512,
}


def scenario(**sections: object) -> Scenario:
    """Return a small pipeline of long sequences."""
    defaults = {
        "parallelism": {"pipeline": 4},
        "batch": {"micro": 1, "global": 2},
        "attention_backend": "fused",
        "schedule": "gpipe",
    }
    return scenario_with(MODEL, **defaults | sections)


def compositions(parts: int) -> list[tuple[int, ...]]:
    """Return all ways to write a number as a sum of numbers above 0, in order."""
    ways = []
    for cuts in itertools.product((False, True), repeat=parts - 1):
        ends = [place + 1 for place, cut in enumerate(cuts) if cut] + [parts]
        ways.append(tuple(end - start for start, end in zip([0, *ends], ends, strict=False)))
    return ways


@given(
    parts=st.integers(1, 6),
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 4),
    data=st.data(),
)
def test_the_programme_equals_all_ways_to_cut(
    parts: int, stages: int, microbatches: int, data: st.DataObject
) -> None:
    seconds = st.integers(1, 40).map(float)
    times = {
        (length, before): data.draw(seconds)
        for length in range(1, parts + 1)
        for before in range(parts - length + 1)
    }

    def time_of(lengths: tuple[int, ...]) -> float:
        starts = itertools.accumulate((0, *lengths[:-1]))
        each = [times[length, start] for length, start in zip(lengths, starts, strict=True)]
        return microbatches * sum(each) + (stages - 1) * max(each)

    lengths, seconds_of_best = best_slices(times, parts, stages, microbatches)
    assert sum(lengths) == parts
    assert time_of(lengths) == seconds_of_best == min(map(time_of, compositions(parts)))


@given(
    parts=st.integers(1, 3),
    stages=st.integers(1, 4),
    sequences=st.integers(1, 4),
    data=st.data(),
)
def test_the_joint_programme_equals_all_mixes(
    parts: int, stages: int, sequences: int, data: st.DataObject
) -> None:
    """Every way to write the batch as a sum of sizes, and every way to cut each microbatch."""
    seconds = st.integers(1, 40).map(float)
    times = {
        size: {
            (length, before): data.draw(seconds)
            for length in range(1, parts + 1)
            for before in range(parts - length + 1)
        }
        for size in range(1, sequences + 1)
    }

    def time_of(mix: tuple[tuple[int, tuple[int, ...]], ...]) -> float:
        each = [
            times[size][length, start]
            for size, lengths in mix
            for length, start in zip(lengths, itertools.accumulate((0, *lengths[:-1])), strict=True)
        ]
        return sum(each) + (stages - 1) * max(each)

    mixes = [
        tuple(zip(sizes, cuts, strict=True))
        for sizes in compositions(sequences)
        for cuts in itertools.product(compositions(parts), repeat=len(sizes))
    ]
    mix, seconds_of_best = best_microbatches(times, parts, stages, sequences)
    assert sum(size for size, _ in mix) == sequences
    assert time_of(mix) == seconds_of_best == min(map(time_of, mixes))


def test_equal_microbatches_are_a_mix() -> None:
    search = find_slices(scenario(), parts=4, micros=(1, 2))
    assert search.sizes == (1, 2) and search.micro in search.sizes
    assert search.mix_predicted_s <= search.predicted_s
    assert sum(each.sequences for each in search.mix) == 2
    alone = find_slices(scenario(), parts=4)
    assert search.predicted_s <= alone.predicted_s
    assert alone.sizes == (1,) and alone.mix_predicted_s == pytest.approx(alone.predicted_s)


def test_found_slices_are_shorter_where_they_attend_to_more() -> None:
    search = find_slices(scenario(), parts=8)
    assert sum(search.slicing.lengths) == MODEL["seq_length"]
    assert [*search.slicing.lengths] == sorted(search.slicing.lengths, reverse=True)
    # The programme leaves out transfers, so equal slices may be as fast up to their time.
    best_s = min(other.iteration_time_s for other in search.others)
    assert search.slicing.iteration_time_s <= best_s * 1.02


def test_lengths_are_those_of_the_passes() -> None:
    """Equal lengths are equal slices to the bit, and unequal ones are not."""
    cut = {"schedule": "terapipe", "parallelism.sequence_slices": 4}
    equal = simulate(scenario().replace(cut))
    written = simulate(scenario().replace(cut | {"parallelism.slice_lengths": (2048,) * 4}))
    assert written.iteration_time_s == equal.iteration_time_s
    uneven = {"parallelism.slice_lengths": (3072, 2048, 2048, 1024)}
    other = simulate(scenario().replace(cut | uneven))
    assert other.iteration_time_s != equal.iteration_time_s
    assert other.hardware_flops == equal.hardware_flops
    by_events = simulate(scenario().replace(cut | uneven), engine="simpy")
    assert by_events.iteration_time_s == other.iteration_time_s


def test_a_sequence_without_such_parts_is_an_error() -> None:
    with pytest.raises(InputError, match="E894"):
        find_slices(scenario(), parts=7)


def test_stages_of_several_chunks_are_an_error() -> None:
    chunks = {"schedule": "seq1f1b_interleaved", "parallelism.sequence_slices": 2}
    with pytest.raises(InputError, match=r"E894 parallelism\.interleave is 2"):
        find_slices(scenario().replace(chunks | {"parallelism.interleave": 2, "batch.global": 8}))

"""Models recorded and written by hand: the same products, time and memory."""

import functools
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from simtrain.guests.recording.child import step as recorder
from simtrain.guests.recording.child.recording import program_of
from simtrain.guests.recording.program import RecordedProgram
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate
from simtrain.workload.work import Collective, FusedAttention, Gemm, GroupedGemm
from tests.helpers import same_programs
from tests.helpers.recorded_programs import scenario_of, works

pytestmark = [
    pytest.mark.slow,
    # torch warns of the view that its own flatten returns.
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
]
GPUS, CLUSTER = 8, "h100_sxm"
KINDS = [*same_programs.MODELS]
WITHIN_TIME, WITHIN_MEMORY = 0.01, 0.02


@functools.cache
def recorded(kind: str, *, is_small: bool) -> RecordedProgram:
    """Record a model. That of its full size takes seconds: tensors have no values."""
    sizes = asdict(sizes_of(kind, is_small=is_small))
    step = recorder.record(same_programs.train, {"sizes": sizes}, GPUS)
    text = program_of(step, {"command": f"simtrain import --record x.py:{kind}", "gpus": GPUS})
    return RecordedProgram.model_validate_json(text)


def sizes_of(kind: str, *, is_small: bool) -> same_programs.Sizes:
    models = same_programs.SMALL if is_small else same_programs.MODELS
    return models[kind]


def results(kind: str, folder: Path, *, is_small: bool) -> tuple[Result, Result]:
    """Simulate a recording, and the scenario by hand."""
    by_hand = same_programs.by_hand(sizes_of(kind, is_small=is_small), GPUS)
    scenarios = (
        scenario_of(recorded(kind, is_small=is_small), folder, cluster=CLUSTER),
        Scenario.model_validate(by_hand | {"cluster": CLUSTER}),
    )
    first, second = map(simulate, scenarios)
    return first, second


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Result, Result]:
    """A small model, recorded and by hand."""
    return results(request.param, tmp_path, is_small=True)


def exchanges(result: Result) -> Counter[tuple[str, str, int, int]]:
    """Count collectives by pass, kind, ranks and MiB: flat buffers pad some parameters."""
    counts: Counter[tuple[str, str, int, int]] = Counter()
    for (kind, work), number in works(result, Collective).items():
        mebibytes = round(work.array_bytes / 2**20)
        counts[kind, work.kind, work.group.num_ranks, mebibytes] += number
    return counts


def test_products_attention_and_exchanges_are_equal(both: tuple[Result, Result]) -> None:
    ours, theirs = both
    kinds = Gemm, GroupedGemm, FusedAttention
    assert works(ours, *kinds) == works(theirs, *kinds)
    assert exchanges(ours) == exchanges(theirs)
    assert ours.hardware_flops == theirs.hardware_flops
    assert ours.num_parameters == theirs.num_parameters


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
def test_time_and_memory_are_those_of_the_scenario_by_hand(kind: str, tmp_path: Path) -> None:
    both = ours, theirs = results(kind, tmp_path, is_small=False)
    kinds = Gemm, GroupedGemm, FusedAttention
    assert works(ours, *kinds) == works(theirs, *kinds)
    assert ours.iteration_time_s == pytest.approx(theirs.iteration_time_s, rel=WITHIN_TIME)
    peaks = [result.memory.fullest.peak_bytes for result in both]
    assert peaks[0] == pytest.approx(peaks[1], rel=WITHIN_MEMORY)


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_times_agree(kind: str, tmp_path: Path) -> None:
    """A recording fuses kernels that follow one another; by hand the stack says which are fused."""
    compiled = {"software": {"stack": "torchtitan_compiled@2025.04"}, "cluster": CLUSTER}
    recording = scenario_of(recorded(kind, is_small=False), tmp_path, **compiled)
    by_hand = same_programs.by_hand(sizes_of(kind, is_small=False), GPUS) | compiled
    times_s = [
        simulate(each).iteration_time_s for each in (recording, Scenario.model_validate(by_hand))
    ]
    assert times_s[0] == pytest.approx(times_s[1], rel=WITHIN_TIME)

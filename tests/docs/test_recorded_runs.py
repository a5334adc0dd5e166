"""Recorded programs beside published runs (docs/update/recorded.py)."""

import functools
import importlib.util
from typing import Any

import pytest

from docs.update.published.recorded import RECORDED, RecordedRun
from docs.update.recorded import result_of
from simtrain.base.input_file import FileVersion
from simtrain.base.program import Program, read_program
from tests.helpers.command_line import ROOT

LLAMA2_70B = {"layers": 80, "hidden": 8192, "heads": 64, "inner": 28672}
LLAMA2_70B |= {"vocab": 32000, "length": 4096}
LLAMA2_13B = {"layers": 40, "hidden": 5120, "heads": 40, "groups": 40, "inner": 13824}
LLAMA2_13B |= {"vocab": 32000, "length": 4096}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "llama2_13b": LLAMA2_13B,
    "llama2_70b": LLAMA2_70B | {"sequences": 1},
    "llama2_70b_full": LLAMA2_70B | {"ac": "full"},
    "llama3_8b": {},
}


def recording_of(run: RecordedRun) -> Program:
    file = ROOT / "docs" / "recorded_programs" / f"{run.recording}.program.json.gz"
    return read_program(FileVersion.of(str(file)))


def test_times_are_within_a_tenth_of_the_published_ones() -> None:
    """Nothing is fitted to these runs. All on A100 are within 6 %."""
    for run in RECORDED:
        result = result_of(run)
        ours = result.tokens_per_s / result.scenario.num_gpus
        is_a100 = run.cluster.startswith("a100")
        assert ours == pytest.approx(run.tokens_per_s, rel=0.06 if is_a100 else 0.12), run


@pytest.mark.parametrize(
    ("name", "millions"),
    [("llama2_13b", 13_016), ("llama2_70b", 68_977), ("llama3_8b", 8_030)],
)
def test_parameters_are_those_of_the_models(name: str, millions: int) -> None:
    """Touvron et al. 2023 and the Llama 3 model cards: 13.0, 69.0 and 8.03 billion."""
    run = next(run for run in RECORDED if run.recording == name)
    assert round(recording_of(run).num_parameters / 1e6) == millions


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
@pytest.mark.parametrize("run", RECORDED, ids=lambda run: run.recording)
def test_the_program_is_recorded_as_in_the_documents(run: RecordedRun) -> None:
    from benchmarks import torchtitan_program
    from simtrain.recording.child.recording import program_of
    from simtrain.recording.child.step import record

    recording = recording_of(run)
    function = functools.partial(torchtitan_program.train)
    step = record(function, ARGUMENTS[run.recording], recording.gpus)
    request = {"command": recording.command, "gpus": recording.gpus}
    again = Program.model_validate_json(program_of(step, request))
    assert again.model_copy(update={"torch": recording.torch}) == recording

"""Pages with made-up numbers, compared with golden files in tests/views/golden."""

import io
import pathlib
from dataclasses import replace

import pytest
from rich.console import Console

from simtrain.engine import Program, Task
from simtrain.engine import simulate as run_program
from simtrain.iteration.memory.buffers import RECOMPUTED, WORKING, ModelStates
from simtrain.iteration.memory.report import MemoryReport, StageMemory
from simtrain.iteration.report.breakdown import Breakdown
from simtrain.iteration.report.result import Result
from simtrain.paper.entries import PaperEntry, PaperLimit, TimeComparison
from simtrain.paper.view import paper_view, times_verdict
from simtrain.render.terminal import terminal_page
from simtrain.schedules import Action
from simtrain.units import GIB
from simtrain.views.memory import memory_view
from simtrain.views.result import result_view
from simtrain.views.view import View
from tests.helpers.command_line import call
from tests.helpers.toys import run, small, with_parts

GOLDEN = pathlib.Path(__file__).parent / "golden"


def page(view: View) -> str:
    """Return the page as text, without blanks at the ends of lines."""
    console = Console(
        file=io.StringIO(), width=120, force_terminal=False, color_system=None, legacy_windows=False
    )
    with console.capture() as capture:
        console.print(terminal_page(view))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def result() -> Result:
    """Make up a result: 16 GPUs, 10 s, 40 % of 312 TFLOP/s; two of four stages compute for less
    time.
    """
    scenario = small().model_copy(update={"name": "by_hand"})
    light = Breakdown(
        compute_s=4.0,
        recompute_s=0.5,
        launch_s=250e-6,
        tensor_communication_s=1.0,
        pipeline_communication_s=0.25,
        bubble_s=3.99975,
        optimizer_s=0.25,
    )
    heavy = replace(light, compute_s=6.0, bubble_s=1.99975)
    available_flops = 312 * 10**12 * 16 * 10
    made = run(scenario)
    timeline = run_program(Program.of([Task("iteration", "stage 0", 10.0)]))
    return with_parts(
        replace(made, iteration=replace(made.iteration, timeline=timeline)),
        memory_report=MemoryReport(80 * GIB, tuple(stage(number) for number in range(4)), GIB),
        stages=(light, light, heavy, heavy),
        model_flops=available_flops * 40 // 100,
        hardware_flops=available_flops * 45 // 100,
        extrapolated_compute=0.123,
    )


def stage(number: int) -> StageMemory:
    """Make up the memory of a stage: 60 GiB on the first stage, and 5 GiB less on
    each next stage.
    """
    states = ModelStates(4 * GIB, 8 * GIB, 24 * GIB)
    activations, buffers = (20 - 5 * number) * GIB, {RECOMPUTED: GIB, WORKING: GIB}
    peak = None if number == 3 else Action(number, "B", 0)
    return StageMemory(number, states, activations, buffers, 2 * GIB, peak, "softmax", 0.5)


def comparison(simulated_s: float) -> TimeComparison:
    """Make up a comparison with an error of +0.5 %, and with the error of
    `simulated_s` from 2 s.
    """
    rows = [
        PaperEntry(("22B", "full"), 4.0, 4.02, facts={"mfu": 0.25}),
        PaperEntry(
            ("22B", "selective+sequence"),
            2.0,
            simulated_s,
            facts={"mfu": 0.5, "paper_mfu": 0.51},
        ),
    ]
    limit = PaperLimit.within(0.3, 0.015)
    gains = [PaperEntry(("22B",), 0.3, 0.31, limit), PaperEntry(("175B",), 0.3, 0.28, limit)]
    return TimeComparison("Table 0", rows, 0.01, 0.02, gains, gain_threshold=0.015)


PAGES = {
    "run_report": lambda: result_view(result()),
    "memory_report": lambda: memory_view(result().memory),
    "memory_too_much": lambda: memory_view(
        replace(result().memory_report, capacity_bytes=52 * GIB)
    ),
    "memory_may_not_fit": lambda: memory_view(
        replace(result().memory_report, capacity_bytes=61 * GIB)
    ),
    "comparison_ok": lambda: paper_view(comparison(1.98)),
    "comparison_failed": lambda: paper_view(comparison(2.1)),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_equal_the_golden_files(name: str) -> None:
    assert page(PAGES[name]()) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_the_page_of_one_rank_says_that_every_rank_is_simulated() -> None:
    alone = small({"tensor": 1, "pipeline": 1}).model_copy(update={"name": "alone"})
    text = page(result_view(with_parts(run(alone), extrapolated_compute=0.0)))
    assert "\nEvery rank simulated.\nEvidence for a100_sxm4_80gb: judged on " in text


@pytest.mark.parametrize(
    ("simulated_s", "closing"),
    [
        (2.0, "OK: mean |error| 0.25% (at most 1.0%), largest 0.50% (at most 2.0%)"),
        (1.98, "OK: mean |error| 0.75% (at most 1.0%), largest 1.00% (at most 2.0%)"),
        (2.036, "FAILED: mean |error| 1.15% (at most 1.0%), largest 1.80% (at most 2.0%)"),
        (1.9, "FAILED: mean |error| 2.75% (at most 1.0%), largest 5.00% (at most 2.0%)"),
    ],
)
def test_the_last_line_states_the_verdict(simulated_s: float, closing: str) -> None:
    """Errors of either sign count; gains do not."""
    made = comparison(simulated_s)
    assert times_verdict(made).text == closing
    assert made.ok == closing.startswith("OK") == (not made.misses)
    assert [gain.is_within for gain in made.gains] == [True, False]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "table4_baseline"),
        ("run", "table5_22b_full"),
        ("run", "table5_22b_present", "--set", "parallelism.data=2", "--set", "batch.global=8"),
        ("reproduce", "table4"),
    ],
)
def test_no_page_has_a_nan_or_an_infinity(arguments: tuple[str, ...]) -> None:
    for outcome in (call(*arguments), call(*arguments, "--format=json")):
        words = outcome.stdout.lower().replace(",", " ").split()
        assert not {"nan", "inf", "infinity", "nan%", "inf%", "-inf"} & set(words)


def test_the_remark_on_a_gain_is_printed_without_markup() -> None:
    """530B gains 1.59 points more than published; pages print brackets as they are."""
    page = call("reproduce", "table5").stdout
    assert "more than 1.5 points off" in page and "[yellow]" not in page

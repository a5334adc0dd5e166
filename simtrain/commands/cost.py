"""`simtrain cost`, and the options of terms that `simtrain search` shares."""

from __future__ import annotations

from typing import Annotated, Any

from simtrain.commands.declare import Fields, Option, options_first
from simtrain.commands.options import AllowOomOption, refuse
from simtrain.commands.output import Output, show_answer
from simtrain.commands.printing import progress_bar
from simtrain.commands.question import Question, read_measured, simulate_with_status
from simtrain.studies.requests import CostRequest


def read_goodput(text: str, _: str) -> float | str:
    """Parse --goodput; `Terms` refuses what is neither a number nor auto."""
    try:
        return float(text)
    except ValueError:
        return text


TrainingFields = Annotated[
    dict[str, Any],
    Fields(
        CostRequest,
        "tokens days goodput spares checkpoint interval draws seed price pue co2",
        {"goodput": Option(metavar="SHARE", parse=read_goodput)},
    ),
]


@options_first("scenario tokens days gpus goodput price pue co2 details overrides")
def cost(
    question: Question,
    fields: TrainingFields,
    output: Output,
    measured: list[str] | None = None,
    *,
    details: bool = False,
    allow_oom: AllowOomOption = False,
) -> None:
    """Estimate days, GPU-hours, price and energy of a training run, with its failures.

    Args:
        measured: runs of yours, which anchor the intervals, as simtrain run takes them.
        details: also print where the hours go.

    Prices and power come from the hardware profile, unless --price replaces the price. A figure
    that it lacks is listed as missing. --pue and --co2 add what the site takes and emits.

    Nodes fail at the rates of the profile, each with its source: a spare replaces the node, and the
    training starts again from its last checkpoint. Many trainings are drawn; --set
    hardware.reliability.restart.warm_up='300 s' and the like change an entry.

    Example: simtrain cost table5_175b_present --tokens 300B

    Example: simtrain cost llama3_405b --days 54 --gpus 16384 --set batch.global=8192 --details
    """
    from simtrain.studies.cost import Terms
    from simtrain.studies.cost import cost as cost_of

    if fields["goodput"] != "auto":
        _refuse_draws(fields, details)
    scenario = question.load()
    Terms.read(CostRequest(scenario, **fields))  # before the simulation
    anchors = read_measured(measured, scenario, question.changes.overrides)
    result = simulate_with_status(scenario, allow_oom, anchors)
    with progress_bar() as on_progress:
        answer = cost_of(result, **fields, on_progress=on_progress)
    show_answer(output, answer, details=details or output.format in ("csv", "md"))


def _refuse_draws(fields: dict[str, Any], details: bool) -> None:
    defaults = {"checkpoint": "async", "draws": 100, "seed": 0}
    names = ("days", "spares", "checkpoint", "interval", "draws", "seed")
    changed = {f"--{name}": fields[name] != defaults.get(name) for name in names}
    refuse(changed | {"--details": details}, "needs drawn failures", "remove --goodput")
    if fields["tokens"] is None:
        refuse({"--tokens": True}, "is missing", "write --tokens 300B")

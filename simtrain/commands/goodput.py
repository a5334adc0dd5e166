"""`simtrain goodput`."""

from __future__ import annotations

from typing import Annotated, Any

from simtrain.commands.declare import Fields
from simtrain.commands.output import Output, show
from simtrain.commands.search import SearchQuestion
from simtrain.studies.training_requests import GoodputRequest

GoodputFields = Annotated[
    dict[str, Any],
    Fields(
        GoodputRequest,
        "tokens days gpus spares checkpoint interval recovery reliability draws seed",
    ),
]


def goodput(question: SearchQuestion, fields: GoodputFields, output: Output) -> None:
    """Simulate a whole training with its failures: days, interruptions and lost hours.

    Nodes fail by kind at the rates of the hardware profile (reliability), each with its source. A
    failure is found, a spare replaces the node, and the training starts again from its last
    checkpoint. Many trainings are drawn; beside them stands the closed form of Young and Daly.
    Tables show where the hours go, and which entries the answer hangs on.

    --set hardware.reliability.restart.warm_up='300 s' and the like change an entry.

    Example: simtrain goodput llama3_405b --days 54 --gpus 16384 --set batch.global=8192
    """
    from simtrain.commands.progress import progress_bar
    from simtrain.studies.goodput.goodput import goodput as draw_trainings
    from simtrain.views.goodput import goodput_view

    with progress_bar() as on_progress:
        result = draw_trainings(question.load(), **fields, on_progress=on_progress)
    show(output, result, lambda: goodput_view(result), result.cluster)

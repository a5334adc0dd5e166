"""A schedule is added with a class in a new file and its place in the registry, nothing else."""

import json
import pathlib

import pytest

from simtrain.schedules import Action, one_f_one_b
from tests.helpers.checkout import Checkout

pytestmark = pytest.mark.slow

NEW_FILE = '''
"""Zero bubble H1 (Qi et al. 2023): 1F1B whose weight gradients fill its bubbles."""

from simtrain.schedules.actions import Action
from simtrain.schedules.family import ScheduleFamily
from simtrain.schedules.one_f_one_b import OneFOneB
from simtrain.schedules.schedule import Schedule


class ZeroBubble(ScheduleFamily):
    """Stage s computes weight gradients s passes after input gradients."""

    name = "zero_bubble"
    splits_backwards = True
    blocks = False

    def build(self, p: int, m: int, n: int) -> Schedule:
        """Return the order of actions of legal sizes."""
        ranks = []
        for stage, actions in enumerate(OneFOneB().build(p, m, n).ranks):
            line, waiting = [], []
            for action in actions:
                line.append(action._replace(kind="I") if action.kind == "B" else action)
                if action.kind == "B":
                    waiting.append(action._replace(kind="W"))
                    line += [waiting.pop(0)] if len(waiting) > stage else []
            ranks.append(line + waiting)
        return Schedule.of(self.name, p, m, n, ranks)
'''
SIZES = 4, 8
SETTINGS = ("parallelism.pipeline=4", "batch.micro=1", "batch.global=8", "overlap.pipeline=true")


def zero_bubble_csv(stages: int, microbatches: int) -> str:
    """The same order as a file, written independently."""
    lines = []
    for stage, actions in enumerate(one_f_one_b(stages, microbatches).ranks):
        line, waiting = list[Action](), list[Action]()
        for action in actions:
            if action.kind == "F":
                line.append(action)
                continue
            line.append(action._replace(kind="I"))
            waiting.append(action._replace(kind="W"))
            line += [waiting.pop(0)] if len(waiting) > stage else []
        lines.append(",".join(map(str, line + waiting)))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy of the project with one more schedule."""
    copy = Checkout.copy(tmp_path_factory.mktemp("checkout"))
    copy.add("simtrain/schedules/zero_bubble.py", NEW_FILE)
    registry = "simtrain/schedules/registry.py"
    line = "from simtrain.schedules.zero_bubble import ZeroBubble\n"
    copy.replace(registry, "\n\nFAMILIES", f"\n{line}\n\nFAMILIES")
    copy.replace(registry, "Interleaved(), ", "Interleaved(), ZeroBubble(), ")
    return copy


def settings(schedule: str) -> list[str]:
    """Return the options of a run with a schedule."""
    return [word for setting in (*SETTINGS, f"schedule={schedule}") for word in ("--set", setting)]


def test_a_named_schedule_takes_as_long_as_its_order_in_a_file(checkout: Checkout) -> None:
    file = checkout.folder / "order.csv"
    file.write_text(zero_bubble_csv(*SIZES), "utf-8")
    named, of_file = (
        json.loads(checkout.call("run", "gpt2_1_5b", *settings(name), "--json"))
        for name in ("zero_bubble", str(file))
    )
    assert named["iteration_time_s"] == of_file["iteration_time_s"]
    assert named["memory"]["stages"] == of_file["memory"]["stages"]


def test_commands_know_a_new_schedule(checkout: Checkout, tmp_path: pathlib.Path) -> None:
    options = settings("zero_bubble")
    assert checkout.call("schedule", "gpt2_1_5b", *options, "--csv") == zero_bubble_csv(*SIZES)
    assert "Schedule zero_bubble" in checkout.call("schedule", "gpt2_1_5b", *options)
    trace = tmp_path / "trace.json"
    checkout.call("run", "gpt2_1_5b", *options, "--trace", str(trace))
    assert json.loads(trace.read_text("utf-8"))["traceEvents"]
    searched = checkout.call("search", "gpt2_1_5b", "--gpus", "8", "--top", "1", *options)
    assert "Exact among" in searched

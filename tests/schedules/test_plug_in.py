"""A schedule is added with a class in a new file and its place in the registry, nothing else."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from simtrain.schedules import Action, one_f_one_b
from tests.helpers.command_line import ROOT

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
def checkout(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the project with one more schedule."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in (
        *("simtrain", "calibrate"),
        *("scenarios", "hw_profiles", "software_stacks", "sweeps"),
    ):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    schedules = copy / "simtrain" / "schedules"
    (schedules / "zero_bubble.py").write_text(NEW_FILE, "utf-8")
    registry = schedules / "registry.py"
    text = registry.read_text("utf-8")
    text = text.replace(
        "\n\nFAMILIES", "\nfrom simtrain.schedules.zero_bubble import ZeroBubble\n\nFAMILIES"
    )
    registry.write_text(text.replace("Interleaved(), ", "Interleaved(), ZeroBubble(), "), "utf-8")
    return copy


def printed(checkout: pathlib.Path, *words: str) -> str:
    """Run a command of the copy, and return what it prints."""
    command = [sys.executable, "-m", "simtrain", *words]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def settings(schedule: str) -> list[str]:
    """Return the options of a run with a schedule."""
    return [word for one in (*SETTINGS, f"schedule={schedule}") for word in ("--set", one)]


def test_a_named_schedule_takes_as_long_as_its_order_in_a_file(checkout: pathlib.Path) -> None:
    file = checkout / "order.csv"
    file.write_text(zero_bubble_csv(*SIZES), "utf-8")
    named, of_file = (
        json.loads(printed(checkout, "run", "gpt2_1_5b", *settings(name), "--json"))
        for name in ("zero_bubble", str(file))
    )
    assert named["iteration_time_s"] == of_file["iteration_time_s"]
    assert named["memory"]["stages"] == of_file["memory"]["stages"]


def test_commands_know_a_new_schedule(checkout: pathlib.Path, tmp_path: pathlib.Path) -> None:
    options = settings("zero_bubble")
    assert printed(checkout, "schedule", "gpt2_1_5b", *options, "--csv") == zero_bubble_csv(*SIZES)
    assert "Schedule zero_bubble" in printed(checkout, "schedule", "gpt2_1_5b", *options)
    trace = tmp_path / "trace.json"
    printed(checkout, "run", "gpt2_1_5b", *options, "--trace", str(trace))
    assert json.loads(trace.read_text("utf-8"))["traceEvents"]
    searched = printed(checkout, "search", "gpt2_1_5b", "--gpus", "8", "--top", "1", *options)
    assert "Exact among" in searched

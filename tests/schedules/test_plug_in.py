"""A schedule is added with a class in a file of any installed package, nothing else."""

import json
import pathlib

import pytest

from simtrain.schedules import Action, one_f_one_b
from tests.helpers.outsider import Outsider

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
        return Schedule.of(self.name, self.placement(p, m), n, ranks)
'''
V_SHAPED_FILE = pathlib.Path(__file__).parents[1] / "helpers" / "v_shaped.py"
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
def outsider(tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """An installed package with two more schedules."""
    files = {"zero_bubble.py": NEW_FILE, "v_shaped.py": V_SHAPED_FILE.read_text("utf-8")}
    parts = {"zero_bubble": "zero_bubble:ZeroBubble", "v_shaped": "v_shaped:VShaped"}
    return Outsider.install(tmp_path_factory.mktemp("outsider"), files, {"schedules": parts})


def settings(schedule: str, *more: str) -> list[str]:
    """Return the options of a run with a schedule."""
    written = *SETTINGS, f"schedule={schedule}", *more
    return [word for setting in written for word in ("--set", setting)]


def test_a_named_schedule_takes_as_long_as_its_order_in_a_file(outsider: Outsider) -> None:
    file = outsider.folder / "order.csv"
    file.write_text(zero_bubble_csv(*SIZES), "utf-8")
    named, of_file = (
        json.loads(outsider.call("run", "gpt2_1_5b", *settings(name), "--format=json"))
        for name in ("zero_bubble", str(file))
    )
    assert named["iteration_time_s"] == of_file["iteration_time_s"]
    assert named["memory"]["stages"] == of_file["memory"]["stages"]


V_SHAPED = settings("v_shaped", "parallelism.interleave=2")


def test_the_first_rank_of_a_v_has_both_ends_of_the_model(
    outsider: Outsider, tmp_path: pathlib.Path
) -> None:
    """It needs no all-reduce of a tied embedding, and the middle ranks hold equally much."""
    loop = settings("interleaved", "parallelism.interleave=2")
    traces, results = [], []
    for number, options in enumerate((V_SHAPED, loop)):
        trace = tmp_path / f"{number}.json"
        printed = outsider.call("run", "gpt2_1_5b", *options, "--format=json", "-o", str(trace))
        results.append(json.loads(printed))
        traces.append(trace.read_text("utf-8"))
    assert "embedding gradient all-reduce" not in traces[0]
    assert "embedding gradient all-reduce" in traces[1]
    (first, *others), (one_end, *middle, _) = (
        [stage["components_bytes"]["optimizer"] for stage in result["memory"]["stages"]]
        for result in results
    )
    assert len({*others, *middle}) == 1 and first > one_end > others[0]
    changes = [word for word in V_SHAPED if word != "--set"]
    simpy = f"run(load_scenario('gpt2_1_5b', {changes}), engine='simpy').iteration_time_s"
    printed = outsider.spawn("-c", f"from simtrain import *; print({simpy})").stdout
    assert float(printed) == results[0]["iteration_time_s"]

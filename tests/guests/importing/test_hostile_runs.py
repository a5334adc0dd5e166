"""Tables and logs of measured runs that are damaged: each is read or refused, none crashes."""

import pathlib
import random

import pytest

from simtrain.errors import InputError
from simtrain.guests.importing.runs import MeasuredRun, RunSettings, read_runs
from simtrain.studies.validation import MOST_BYTES, MOST_S, wrong_peak, wrong_time
from tests.guests.importing.test_megatron import PRINTED

H100 = RunSettings("h100_sxm", None, (), "megatron_core")
HEAD = (
    "name,model,layers,hidden,heads,seq,gpus,tp,global_batch,sharding,notes,iteration_s,peak_mem_gb"
)
ROW = 'a,"Llama, 3",24,2048,16,2048,8,2,64,1 (no overlap),"GA=4, overlap_grad_reduce on",1.5,40'
LINE = " iteration 1/ 100 | elapsed time per iteration (ms): {} | loss: 1.0 |\n"
MEMORY = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 10.0 | max allocated: {} |\n"


def runs_in(folder: pathlib.Path, text: str, name: str = "runs.csv") -> list[MeasuredRun]:
    file = folder / name
    file.write_text(text, "utf-8", newline="")
    return [*read_runs([file], H100)]


@pytest.mark.parametrize("number", ["...", "1.2.3", "0.0", "1e-400", "9" * 400, "nan", "", "1e9"])
def test_a_garbled_time_of_a_log_counts_as_missing(number: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="E892"):
        runs_in(tmp_path, PRINTED + LINE.format(number), "a.log")
    (run,) = runs_in(tmp_path, PRINTED + LINE.format(number) + LINE.format("1200.5"), "a.log")
    assert run.iteration_time_s == pytest.approx(1.2005)


@pytest.mark.parametrize("number", ["...", "1.2.3", "0.0", "1e-400", "9" * 400, "nan"])
def test_a_garbled_peak_of_a_log_counts_as_missing(number: str, tmp_path: pathlib.Path) -> None:
    (run,) = runs_in(tmp_path, PRINTED + LINE.format("1200") + MEMORY.format(number), "a.log")
    assert run.peak_bytes is None
    text = PRINTED + LINE.format("1200") + MEMORY.format(number) + MEMORY.format("2048.5")
    (run,) = runs_in(tmp_path, text, "a.log")
    assert run.peak_bytes == 2048.5 * 2**20


@pytest.mark.parametrize(
    "rows",
    [f'a,"{"x" * 200_000}",2', 'a,"open,2\nb,c,3', 'a,"b"c,2', 'a,"b\nc'],
    ids=["long cell", "open quote", "text after a quote", "open quote at the end"],
)
def test_a_broken_table_is_an_error_with_its_line(rows: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"runs\.csv:\d: E891 the table is broken"):
        runs_in(tmp_path, f"{HEAD}\n{rows}\n")


@pytest.mark.parametrize("time", ["1e12", "1e308", "1e-308", "1e-9", "1e400", "-1", "0", "nan"])
def test_a_time_that_no_iteration_has_refuses_its_row(time: str, tmp_path: pathlib.Path) -> None:
    (run,) = runs_in(tmp_path, f"{HEAD}\n{ROW}\n".replace(",1.5,", f",{time},"))
    assert run.scenario is None and "iteration_s" in run.refusal


def test_limits_are_those_of_machines() -> None:
    assert not wrong_time(0.001) and not wrong_time(MOST_S) and wrong_time(2 * MOST_S)
    assert not wrong_peak(1e9) and not wrong_peak(MOST_BYTES) and wrong_peak(2 * MOST_BYTES)


def damaged(rng: random.Random, text: str) -> str:
    """Change some characters, cells or lines of a text."""
    cells = [
        "",
        "-1",
        "1e400",
        "nan",
        "9" * 5000,
        "\ud7ff",
        "0x1f",
        '""',
        "{a: [",
        "null",
        "a" * 999,
    ]
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:place] + rng.choice('",\n\r\0\t#;[]{}=:.-\x1b\u202e') + text[place:]
            case 1:
                text = text[:place] + text[place + rng.randrange(20) :]
            case 2:
                parts = text.split(",")
                parts[rng.randrange(len(parts))] = rng.choice(cells)
                text = ",".join(parts)
            case 3:
                lines = text.split("\n")
                lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
                text = "\n".join(lines)
    return text


@pytest.mark.parametrize("count", [150, pytest.param(4_000, marks=pytest.mark.ci)])
def test_damaged_sources_are_read_or_refused(count: int, tmp_path: pathlib.Path) -> None:
    rng = random.Random(count)
    more = [
        "model.layer_pattern",
        "parallelism.layout",
        "recompute",
        "schedule",
        "dtype",
        "software",
    ]
    sources = {
        "a.csv": f"{HEAD}\n{ROW}\n",
        "b.csv": f"{HEAD},{more}\n{ROW},M*M*,Et|tL,full,1f1b,fp8,nemo\n",
        "d.log": PRINTED + LINE.format(1200.5) + MEMORY.format(2048.5),
    }
    for number in range(count):
        name = rng.choice([*sources])
        try:
            for run in runs_in(tmp_path, damaged(rng, sources[name]), name):
                assert (run.scenario is None) == bool(run.refusal), number
        except InputError as error:
            assert str(error)

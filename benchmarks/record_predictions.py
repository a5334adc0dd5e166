"""Print the predictions of the imported simtrain, through the API that all revisions have.

`python record_predictions.py scenarios TREE [FILE]` predicts TREE's shipped scenarios, and the
scenarios in FILE, one per line as JSON. `python record_predictions.py sweeps TREE` runs TREE's
shipped sweeps. The first line printed is the path of simtrain; every other line is {"name": ...,
"record": ...}.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import simtrain
from simtrain.scenario import check_scenario

# Until version 0.1.0 the package exported the evaluator.
try:
    from simtrain.studies.evaluation import Evaluator as _Evaluator
except ImportError:
    from simtrain import Evaluator as _Evaluator  # type: ignore

Record = dict[str, Any]
_BREAKDOWN = "breakdown_"


def scenario_records(
    tree: pathlib.Path, draws: pathlib.Path | None
) -> Iterator[tuple[str, Record]]:
    # One evaluator for all scenarios: a wrong key in one of its caches then moves predictions.
    evaluator = _Evaluator(allow_oom=True)
    for path in sorted((tree / "scenarios").glob("*.yaml")):
        yield path.stem, _record(evaluator, partial(simtrain.load_scenario, path))
    if draws is not None:
        with draws.open(encoding="utf-8") as lines:
            for line in lines:
                values = json.loads(line)
                yield values["name"], _record(evaluator, partial(_checked, values))


def _checked(values: dict[str, Any]) -> simtrain.Scenario:
    scenario = simtrain.Scenario.model_validate(values)
    check_scenario(scenario)
    return scenario


def _record(evaluator: Any, load: Callable[[], simtrain.Scenario]) -> Record:
    """Return the predictions of `simulate` and of an evaluator."""
    return {
        "simulate": _or_error(lambda: _simulated(load())),
        "evaluator": _or_error(lambda: _evaluation(evaluator.evaluate(load()))),
    }


def _evaluation(evaluation: Any) -> Record:
    run = evaluation.run
    assert run is not None, "allow_oom runs every scenario"
    return {
        "peak_bytes": evaluation.peak_bytes,
        "capacity_bytes": evaluation.capacity_bytes,
        "recompute": evaluation.scenario.recompute.model_dump(),
        "iteration_time_s": run.iteration_time_s,
        "tokens_per_s": run.tokens_per_s,
        "mfu": run.mfu,
        "hfu": run.hfu,
        "breakdown_s": _without_suffix(asdict(run.breakdown)),
    }


def _simulated(scenario: simtrain.Scenario) -> Record:
    result = (getattr(simtrain, "run", None) or simtrain.simulate)(scenario, engine="simpy")
    # Until version 0.1.0 the method was called to_json.
    to_dict = result.to_dict if hasattr(result, "to_dict") else result.to_json
    return dict(to_dict())


def _or_error(predict: Callable[[], Record]) -> Record:
    """Return the record, or the codes of the error. A crash of one revision is a difference too."""
    try:
        return predict()
    except simtrain.InputError as error:
        return {"error": [problem.code for problem in error.problems]}
    except Exception as error:
        return {"error": [f"{type(error).__name__}: {error}"]}


def sweep_records(tree: pathlib.Path) -> Iterator[tuple[str, Record]]:
    for path in sorted((tree / "sweeps").glob("*.yaml")):
        for row in _rows(path):
            yield f"{path.stem}-{row['index']}", {"sweep": row}


def _rows(sweep: pathlib.Path) -> list[Record]:
    """Run a sweep, and return its rows in the order of the grid."""
    import pyarrow.parquet

    with tempfile.TemporaryDirectory() as name:
        out = pathlib.Path(name) / "out"
        command = ["-m", "simtrain", "sweep", str(sweep), "-o", str(out), "--workers", "1"]
        done = subprocess.run(
            [sys.executable, "-P", *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            sys.exit(f"simtrain sweep {sweep} failed:\n{done.stderr}")
        files = sorted(out.glob("parts/part-*.parquet"))
        rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
    return sorted(map(_with_breakdown, rows), key=lambda row: row["index"])


def _with_breakdown(row: Record) -> Record:
    """Return the row with its breakdown as a dictionary."""
    parts = {name: value for name, value in row.items() if name.startswith(_BREAKDOWN)}
    others = {name: value for name, value in row.items() if name not in parts}
    breakdown = {name.removeprefix(_BREAKDOWN): value for name, value in parts.items()}
    return others | {"breakdown_s": _without_suffix(breakdown)}


def _without_suffix(breakdown_s: Record) -> Record:
    """Rename the parts of a breakdown as in the JSON of a result."""
    return {name.removesuffix("_s"): seconds for name, seconds in breakdown_s.items()}


def main() -> None:
    print(simtrain.__file__, flush=True)
    kind, tree, *draws = sys.argv[1:]
    if kind == "sweeps":
        records = sweep_records(pathlib.Path(tree))
    else:
        records = scenario_records(pathlib.Path(tree), pathlib.Path(draws[0]) if draws else None)
    for name, record in records:
        print(json.dumps({"name": name, "record": record}), flush=True)


if __name__ == "__main__":
    main()

"""Made-up results of sweeps, whose figures can be worked out by hand."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow
import pyarrow.parquet

Row = dict[str, Any]
GIB = 2**30


def row(index: int, axes: Mapping[str, Any], **results: Any) -> Row:
    """Return a point, which ran unless `status` differs."""
    return {"index": index, **axes, "status": "ok", "rule": None} | results


def ran(rate: float, gib: float, num_gpus: int = 8, tokens: int = 1000) -> Row:
    """Return the results of a point with this number of tokens per second."""
    return {
        "iteration_time_s": tokens / rate,
        "tokens_per_s": rate,
        "mfu": rate / (100.0 * num_gpus),
        "hfu": rate / (80.0 * num_gpus),
        "peak_bytes": int(gib * GIB),
        "num_gpus": num_gpus,
        "breakdown_bubble_s": 0.0,
    }


def nothing(status: str, rule: str | None = None) -> Row:
    """Return the results of a point that did not run."""
    none = dict.fromkeys(ran(1, 1))
    return none | {"num_gpus": 8, "status": status, "rule": rule}


def write_results(
    folder: pathlib.Path, rows: Sequence[Row], part_size: int = 4, **header: Any
) -> pathlib.Path:
    """Write rows as the parts of a sweep to a folder."""
    parts = folder / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    whole = pyarrow.Table.from_pylist(list(rows))
    for number, start in enumerate(range(0, len(rows), part_size)):
        pyarrow.parquet.write_table(
            whole.slice(start, part_size), parts / f"part-{number:06d}.parquet"
        )
    about = {"hash": "0", "part_size": part_size, "num_points": len(rows), "name": folder.name}
    (folder / "sweep.json").write_text(json.dumps(about | header), encoding="utf-8")
    return folder

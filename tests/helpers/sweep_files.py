"""Small sweeps for tests, as text and as plans."""

import pathlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.parquet

from simtrain.studies.sweep.grid import Sweep, load_sweep
from simtrain.studies.sweep.run import SweepFolder, SweepRun

BASE = """\
base:
  model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 64, vocab_size: 512}
  batch: {micro: 1, global: 4}
"""
# 24 points. By hand: 3 stages do not divide 4 layers, and 8 ranks do not divide 4 heads.
SMALL = (
    BASE
    + """\
axes:
  parallelism.tensor: [1, 4, 8]
  parallelism.pipeline: {range: [1, 4, 1]}
  batch.micro: {powers_of_two: [1, 2]}
constraints:
  - tensor * pipeline <= 16
"""
)

PART_SIZE = 5
NUM_PARTS = 5  # 24 points


def sweep_of(
    folder: pathlib.Path,
    text: str = SMALL,
    overrides: Sequence[str] = (),
    part_size: int | None = None,
) -> Sweep:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    sweep = load_sweep(path, overrides)
    return replace(sweep, part_size=part_size) if part_size else sweep


def with_axes(*lines: str) -> str:
    return "".join([BASE, "axes:\n", *(f"  {line}\n" for line in lines)])


def run(
    sweep: Sweep,
    out: pathlib.Path,
    workers: int = 1,
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None,
) -> int:
    folder = SweepFolder(out)
    folder.open(sweep.header)
    return SweepRun(sweep, folder, workers).compute(on_progress)


def files_of(out: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "parts").glob("part-*")}


def rows_of(out: pathlib.Path) -> list[dict[str, Any]]:
    files = sorted((out / "parts").iterdir())
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]

"""`python -m calibrate nccl-tests`: results of nccl-tests join what was measured."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from simtrain.errors import SimtrainError


class CollectiveOp(StrEnum):
    """The collectives that a file can hold."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"


def nccl_tests(
    results: Annotated[Path, typer.Argument(help="What nccl-tests printed, or wrote with -J.")],
    op: Annotated[CollectiveOp, typer.Option(help="The collective that the file is of.")],
    ranks: Annotated[int, typer.Option(min=2, help="GPUs that took part.")],
    out: Annotated[Path, typer.Option(help="Folder of the measurements that they join.")],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that these are on.")] = 1,
) -> None:
    """Add what nccl-tests measured to the measurements of the same machine.

    Example: simtrain calibrate nccl-tests all_reduce.txt --op all_reduce --ranks 8 --out my_node
    """
    from calibrate.records.nccl_tests import add_nccl_tests

    try:
        added = add_nccl_tests(out, results, op.value, ranks, nodes)
    except SimtrainError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    print(f"{out}: {added} records added")

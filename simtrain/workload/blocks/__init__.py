"""Building blocks of layers: each function records a node on a tape and returns its output.

Blocks of experts and of Mamba-2 are in `experts` and `mamba`.
"""

from simtrain.workload.blocks.adapter import adapted_column, adapted_row, add_adapter
from simtrain.workload.blocks.attention import CORE_ATTENTION, attention, latent_attention
from simtrain.workload.blocks.elementwise import (
    activation,
    add,
    concat,
    concat_rows,
    copy,
    dropout,
    norm,
    split,
    split_rows,
)
from simtrain.workload.blocks.linear import (
    all_gather,
    all_reduce,
    all_to_all,
    column_linear,
    column_linears,
    gather_columns,
    reduce_scatter,
    replicated_linear,
    row_linear,
    send,
)
from simtrain.workload.blocks.vocabulary import cross_entropy, look_up, positions

__all__ = [
    "CORE_ATTENTION",
    "activation",
    "adapted_column",
    "adapted_row",
    "add",
    "add_adapter",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "attention",
    "column_linear",
    "column_linears",
    "concat",
    "concat_rows",
    "copy",
    "cross_entropy",
    "dropout",
    "gather_columns",
    "latent_attention",
    "look_up",
    "norm",
    "positions",
    "reduce_scatter",
    "replicated_linear",
    "row_linear",
    "send",
    "split",
    "split_rows",
]

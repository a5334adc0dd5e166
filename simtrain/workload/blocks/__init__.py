"""Building blocks of layers: each function records a node on a tape and returns its output."""

from simtrain.workload.blocks.activation import activation
from simtrain.workload.blocks.adapter import adapted_column, adapted_row
from simtrain.workload.blocks.attention import CORE_ATTENTION, attention
from simtrain.workload.blocks.dropout import add, dropout, dropout_add
from simtrain.workload.blocks.exchange import (
    all_gather,
    all_reduce,
    all_to_all,
    gather_columns,
    reduce_scatter,
    send,
)
from simtrain.workload.blocks.expert_mlp import ExpertMlp
from simtrain.workload.blocks.experts import experts
from simtrain.workload.blocks.latent_attention import latent_attention
from simtrain.workload.blocks.linear import (
    column_linear,
    column_linears,
    replicated_linear,
    row_linear,
)
from simtrain.workload.blocks.mamba import MambaMixer, mamba_mixer
from simtrain.workload.blocks.norm import norm
from simtrain.workload.blocks.router import ExpertChoice
from simtrain.workload.blocks.views import concat, concat_rows, copy, split, split_rows
from simtrain.workload.blocks.vocabulary import cross_entropy, look_up, positions

__all__ = [
    "CORE_ATTENTION",
    "ExpertChoice",
    "ExpertMlp",
    "MambaMixer",
    "activation",
    "adapted_column",
    "adapted_row",
    "add",
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
    "dropout_add",
    "experts",
    "gather_columns",
    "latent_attention",
    "look_up",
    "mamba_mixer",
    "norm",
    "positions",
    "reduce_scatter",
    "replicated_linear",
    "row_linear",
    "send",
    "split",
    "split_rows",
]

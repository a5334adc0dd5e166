"""Which whole training iterations are measured, as plain data of simtrain's scenarios."""

from __future__ import annotations

from typing import Any

Data = dict[str, Any]


def _model(layers: int, hidden: int, heads: int, seq_length: int, vocab: int) -> Data:
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "seq_length": seq_length,
        "vocab_size": vocab,
    }


_CPU_QUICK = [(_model(2, 256, 4, 128, 1024), 2)]
_CPU = [*_CPU_QUICK, (_model(4, 128, 4, 64, 512), 2), (_model(4, 512, 8, 256, 4096), 2)]
_GPU_QUICK = [(_model(12, 1024, 16, 1024, 51200), 4)]
_GPU = [
    *_GPU_QUICK,
    (_model(12, 2048, 16, 1024, 51200), 4),
    (_model(6, 4096, 32, 2048, 51200), 1),
]
"""Models and sequences in a microbatch; with Adam the largest takes 30 GB on one GPU."""
_RECOMPUTES = "none", "selective", "full"
_MICROBATCHES = 4


def iteration_cases(num_ranks: int, *, on_gpu: bool, quick: bool) -> list[Data]:
    """Scenarios for `num_ranks` processes, every model under every split and recompute.

    Outputs are not deallocated once they are sent, and a stage's output is sent whole.
    """
    models = (_GPU_QUICK if quick else _GPU) if on_gpu else (_CPU_QUICK if quick else _CPU)
    return [
        _scenario(model, micro, split, recompute)
        for model, micro in models
        for split in _splits(num_ranks, model["num_layers"], model["num_attention_heads"])
        for recompute in _RECOMPUTES
    ]


def _splits(num_ranks: int, num_layers: int, num_heads: int) -> list[Data]:
    """One rank; or all in a pipeline, all in a tensor-parallel group, and both by halves."""
    if num_ranks == 1:
        return [{}]
    splits = []
    if num_heads % num_ranks == 0:
        splits += [{"tensor": num_ranks, "sequence_parallel": each} for each in (False, True)]
    if num_layers % num_ranks == 0:
        splits.append({"pipeline": num_ranks})
    half = num_ranks // 2
    if num_ranks % 2 == 0 and half > 1 and num_heads % half == 0:
        splits.append({"tensor": half, "sequence_parallel": True, "pipeline": 2})
    return splits


def _scenario(model: Data, micro: int, split: Data, recompute: str) -> Data:
    return {
        "model": model,
        "parallelism": {**split, "scatter_gather": False},
        "batch": {"micro": micro, "global": _MICROBATCHES * micro},
        "recompute": recompute,
        "memory": {"deallocate_outputs": False},
    }

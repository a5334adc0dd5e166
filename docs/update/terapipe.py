"""TeraPipe's published iterations, simulated, for docs/related_work.md."""

import functools

from docs.update.published.terapipe import MODELS, SETTINGS, Setting
from docs.update.request import Request, signed_percent, table
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate

SEQ_LENGTH = 2048
WHOLE = (SEQ_LENGTH,)


def scenario_of(setting: Setting, lengths: tuple[int, ...]) -> Scenario:
    """Return the scenario of a setting with slices of these lengths.

    TeraPipe's benchmark has layers alone, without embeddings and logits (transformer_models.py), so
    the vocabulary is the smallest. Its layers are PyTorch's modules without dropout: mask and
    softmax, activation and residual are kernels of their own. One rank of a stage sends to the
    next, whose ranks share the message: as many bytes between nodes as with scatter_gather.
    Messages are broadcasts that block (terapipe.py, forward_step and backward_step). The last rank
    of a stage sends and the first one receives, so both run at the same time, as in one call of
    Megatron-LM. Gradients are added in the type of the layers, fp16 (backward_step: w.grad +=).
    """
    layers, hidden, heads = MODELS[setting.model]
    cut = len(lengths) > 1
    slices = {"sequence_slices": len(lengths), "slice_lengths": list(lengths)} if cut else {}
    axes = {"tensor": setting.tensor, "pipeline": setting.pipeline, "scatter_gather": True}
    kernels = ("fused_softmax", "fused_activation", "fused_dropout_add")
    return Scenario.model_validate(
        {
            "model": {
                "num_layers": layers,
                "hidden_size": hidden,
                "num_attention_heads": heads,
                "seq_length": SEQ_LENGTH,
                "vocab_size": 128 * setting.tensor,
                "hidden_dropout": 0,
                "attention_dropout": 0,
            },
            "parallelism": axes | slices,
            "schedule": "terapipe" if cut else "gpipe",
            "batch": {"micro": 1, "global": setting.sequences},
            "precision": {"compute": "fp16", "gradients": "fp16"},
            "overlap": {"pipeline": False},
            "software": {"stack": "megatron_2021"} | dict.fromkeys(kernels, False),
            "cluster": "v100_p3",
        }
    )


@functools.cache
def time_of(setting: Setting, lengths: tuple[int, ...] = WHOLE) -> float:
    """Return the simulated seconds of an iteration."""
    return simulate(scenario_of(setting, lengths)).iteration_time_s


def equal(number: int) -> tuple[int, ...]:
    """Return the tokens of equal slices."""
    return (SEQ_LENGTH // number,) * number


def speedup(setting: Setting) -> float:
    """Return the simulated speed-up of TeraPipe's slices over whole sequences."""
    return time_of(setting) / time_of(setting, setting.lengths)


def terapipe_speedups(request: Request) -> str:
    """Return the table of the settings."""
    rows = []
    for each in SETTINGS:
        times = ((each.whole_s, time_of(each)), (each.sliced_s, time_of(each, each.lengths)))
        published, simulated = each.whole_s / each.sliced_s, speedup(each)
        layout = f"({each.number}) {each.model}, {each.tensor} x {each.pipeline}"
        cells = (f"{ours:.3f} s, {signed_percent(ours / theirs - 1)}" for theirs, ours in times)
        text = f"{simulated:.2f}, {signed_percent(simulated / published - 1)}"
        measured = f"{each.whole_s:.3f} s", f"{each.sliced_s:.3f} s", f"{published:.2f}"
        rows.append([layout, *measured, *cells, text])
    head = ["setting, tensor x pipeline", "whole", "slices", "speed-up"]
    ours = [f"{name}, simulated" for name in ("whole", "slices", "speed-up")]
    return table([*head, *ours], rows)


def terapipe_slices(request: Request) -> str:
    """Return the table of equal slices of the setting (9)."""
    setting = next(each for each in SETTINGS if each.number == 9)
    rows = []
    for number, published_s in ((1, setting.whole_s), *setting.equal_s):
        time_s = time_of(setting, equal(number))
        error = signed_percent(time_s / published_s - 1)
        rows.append([str(number), f"{published_s:.3f} s", f"{time_s:.3f} s", error])
    return table(["slices", "published", "simulated", "error"], rows)

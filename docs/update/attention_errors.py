"""Errors against published times of fused attention that no profile is fitted on."""

from collections.abc import Callable, Iterable, Mapping

from docs.update.published.attention import LATENT_MS, WINDOW_MS
from docs.update.request import Request
from simtrain.durations.model import DurationModel
from simtrain.hardware.load import load_profile
from simtrain.workload.work import FusedAttention


def _latent(length: int, is_backward: bool) -> FusedAttention:
    return FusedAttention(128, length, 192, is_backward, value_size=128)


def _window(length: int, is_backward: bool) -> FusedAttention:
    return FusedAttention(2 * 64, length, 64, is_backward, kv_heads=2 * 8, window=1024)


KERNELS: dict[
    str, tuple[Callable[[int, bool], FusedAttention], Mapping[int, tuple[float, float]]]
] = {"latent": (_latent, LATENT_MS), "window": (_window, WINDOW_MS)}


def errors(kernel: str) -> tuple[list[float], list[float]]:
    """Return the relative errors forward and backward, by length, of `latent` or `window`."""
    build, times_ms = KERNELS[kernel]
    model = DurationModel(load_profile("h200_sxm"))
    forward, backward = (
        [
            1e3 * model.seconds(build(length, bool(way))) / both_ms[way] - 1
            for length, both_ms in times_ms.items()
        ]
        for way in (0, 1)
    )
    return forward, backward


def _range(values: Iterable[float]) -> str:
    percents = sorted(100 * value for value in values)
    return f"{percents[0]:+.1f} to {percents[-1]:+.1f} %".replace("-", "−")


def attention(request: Request) -> str:
    """Return the ranges of errors: `attention latent` or `attention window`."""
    forward, backward = map(_range, errors(request.text))
    return f"{forward} forward and {backward} backward"

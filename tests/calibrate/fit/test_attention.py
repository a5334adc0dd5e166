"""Fused attention from records: the fit recovers a known machine, and bad records are refused."""

from itertools import product

import pytest

from calibrate.fit.attention import training_attention
from calibrate.fit.figures import HeadSizes, OtherAttention, TrainingAttentionFigures, TrainingRates
from calibrate.fit.from_records import fit_measurements
from calibrate.fit.result import Fit
from calibrate.records.schema import AttentionRecord, Measurement
from simtrain.base.entry import Entry
from simtrain.durations.model import AttentionMachine, attention_seconds
from simtrain.hardware.profile import AttentionEfficiency
from simtrain.studies.simulation import simulate
from simtrain.workload.work import FusedAttention
from tests.helpers.measured_records import header, took, unproductive
from tests.helpers.toys import a100, small

pytestmark = pytest.mark.slow

MACHINE = AttentionMachine(
    forward_flops=180e12,
    forward_half_length=700.0,
    backward_flops=150e12,
    backward_half_length=1200.0,
    num_sms=108,
    memory_bytes_per_s=1.5e12,
    latency_s=3e-6,
)
SHAPES = tuple(product((8, 16, 64), (1024, 2048, 8192)))


def record(heads: int, length: int, *, faster: float = 1.0) -> AttentionRecord:
    forward, backward = (
        took(attention_seconds(FusedAttention(heads, length, 64, is_backward), MACHINE) / faster)
        for is_backward in (False, True)
    )
    sizes = {"heads": heads, "seq_length": length, "head_size": 64}
    return AttentionRecord(**sizes, forward=forward, backward=backward)


def fitted(*attention: Measurement, device: str | None = None) -> Fit:
    changes = {"device": device} if device else {}
    return fit_measurements(header(**changes), [*unproductive(), *attention], "mine")


def test_the_fit_recovers_the_kernel_that_made_the_records() -> None:
    fit = fitted(*(record(*shape) for shape in SHAPES))
    kernel = fit.profile.fused_attention
    assert kernel is not None
    assert kernel.forward_efficiency.value == pytest.approx(180 / 312, rel=0.01)
    assert kernel.backward_efficiency.value == pytest.approx(150 / 312, rel=0.01)
    assert kernel.forward_half_length.value == pytest.approx(700, rel=0.03)
    assert kernel.backward_half_length.value == pytest.approx(1200, rel=0.03)
    seen = kernel.valid_shapes.value
    assert (seen.heads, seen.seq_length, seen.head_size) == ((8, 64), (1024, 8192), (64, 64))
    found = {residuals.title: residuals for residuals in fit.residuals}
    for way in ("forward", "backward"):
        assert len(found[f"fused attention {way}"].rows) == len(SHAPES)
        assert found[f"fused attention {way}"].max_abs_error < 0.01
    assert kernel.forward_efficiency.source.endswith("9 points: fused attention forward")
    fused = small({"tensor": 1, "pipeline": 1}, attention_backend="fused")
    assert simulate(fused, fit.profile).iteration_time_s > 0


def published(softmax_channels: float) -> TrainingAttentionFigures:
    """Return the rates that a paper would publish for `MACHINE`.

    The softmax takes as long as `softmax_channels` more channels per head.
    """

    def points(*, is_backward: bool) -> list[tuple[int, int, int, float]]:
        ops = [FusedAttention(*shape, 128, is_backward) for shape in SHAPES]
        return [
            (op.heads, op.seq_length, 128, op.flops / attention_seconds(op, MACHINE) / 1e12)
            for op in ops
        ]

    ratio = (1 + softmax_channels / 128) / (1 + softmax_channels / 64)
    rates = [(tokens, ratio * 90.0, 90.0, 80.0, 80.0) for tokens in (512, 1024, 2048)]
    return TrainingAttentionFigures(
        forward=TrainingRates(source="a paper", points=points(is_backward=False)),
        backward=TrainingRates(source="a paper", points=points(is_backward=True)[3:]),
        head_sizes=HeadSizes(source="another", narrow=64, points=rates),
        elsewhere=OtherAttention(source="a third", forward=points(is_backward=False)[:1]),
    )


def test_the_fit_recovers_the_kernel_from_published_rates() -> None:
    machine = a100().model_copy(update={"fused_attention": None})
    memory = {
        "fused_bandwidth": Entry(value=1.5e12, source="made up"),
        "kernel_latency": Entry(value=3e-6, source="made up"),
    }
    memory_bound = machine.memory_bound.model_copy(update=memory)
    profile = machine.model_copy(update={"memory_bound": memory_bound})
    data, residuals = training_attention(published(50.0), profile)
    kernel = AttentionEfficiency.model_validate(data)
    assert kernel.forward_efficiency.value == pytest.approx(180 / 312, rel=0.01)
    assert kernel.backward_efficiency.value == pytest.approx(150 / 312, rel=0.01)
    assert kernel.forward_half_length.value == pytest.approx(700, rel=0.03)
    assert kernel.backward_half_length.value == pytest.approx(1200, rel=0.03)
    assert kernel.forward_softmax_channels is not None
    assert kernel.forward_softmax_channels.value == pytest.approx(50, rel=0.001)
    assert kernel.backward_softmax_channels is not None
    assert kernel.backward_softmax_channels.value == 0
    seen = kernel.valid_shapes.value
    # Backward was timed from 16 heads on.
    assert (seen.heads, seen.seq_length, seen.head_size) == ((16, 64), (1024, 8192), (64, 128))
    assert all(each.max_abs_error < 0.01 for each in residuals)

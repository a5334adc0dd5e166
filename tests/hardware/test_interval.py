"""Intervals follow from the errors of runs of the same kind, or of the nearest one."""

import pathlib
import shutil

import pytest

from simtrain.base.resources import find_profile, list_profiles, list_stacks
from simtrain.errors import InputError
from simtrain.hardware.interval import RunKind, errors_of
from simtrain.hardware.validated_on import validated_on
from simtrain.scenario import load_scenario
from simtrain.studies.simulation import simulate
from tests.helpers.command_line import call

BASIS = "46 measured runs of megatron_core on h100_sxm, bf16, dense, several nodes"
BF16 = RunKind("h100_sxm", "megatron_core", "bf16", has_experts=False)


def widths(kind: RunKind) -> tuple[float, ...]:
    """Return predicted / measured - 1 at the ends of the interval of a prediction of 1 s."""
    interval = errors_of(kind).around(1.0)
    ends = interval.p95_s, interval.p75_s, interval.p25_s, interval.p5_s
    return tuple(1 / time_s - 1 for time_s in ends)


def test_a_kind_that_was_judged_has_its_own_quantiles() -> None:
    """Errors are predicted / measured - 1: the slowest measured time has the least error."""
    errors = validated_on("h100_sxm")
    assert errors
    quantiles = errors.measured_runs[0].quantiles
    assert quantiles
    expected = quantiles.p5, quantiles.p25, quantiles.p75, quantiles.p95
    assert widths(BF16) == pytest.approx(expected)
    assert errors_of(BF16).basis == BASIS


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        (RunKind("h200_sxm", "megatron_core", "bf16", has_experts=False), 2),
        (RunKind("h100_sxm", "megatron_core", "bf16", has_experts=True), 2),
        (RunKind("h200_sxm", "megatron_core", "bf16", has_experts=True), 4),
        (RunKind("h100_sxm", "megatron_core", "bf16", has_experts=False, is_changed=True), 2),
    ],
)
def test_each_difference_makes_it_twice_as_wide(kind: RunKind, factor: int) -> None:
    assert widths(kind) == pytest.approx([factor * error for error in widths(BF16)])
    assert f"{factor} times as wide" in errors_of(kind).basis


def test_16_bit_types_are_one_kind() -> None:
    fp16 = RunKind("h100_sxm", "megatron_core", "fp16", has_experts=False)
    assert widths(fp16) == widths(BF16)


def test_few_runs_count_with_twice_their_errors() -> None:
    """Table 5: a mean of 1.01 % and a worst of 2.10 %; with the 530B run, 1.96 % and 1.96 %."""
    paper = RunKind("a100_sxm4_80gb", "megatron_2022", "fp16", has_experts=False)
    assert widths(paper) == pytest.approx((-0.042, -0.0392, 0.0392, 0.042))


def test_software_without_a_stack_says_how_far_off_another_stack_is() -> None:
    errors = validated_on("h100_sxm")
    assert errors and errors.other_software and errors.other_software.quantiles
    low, *_, high = widths(RunKind("h100_sxm", "torchtitan", "bf16", has_experts=False))
    quantiles = errors.other_software.quantiles
    assert (low, high) == pytest.approx((quantiles.p5, quantiles.p95))


@pytest.mark.parametrize("cluster", list_profiles())
@pytest.mark.parametrize("stack", list_stacks())
def test_every_interval_is_finite_and_in_order(cluster: str, stack: str) -> None:
    for data_type in ("bf16", "fp8"):
        for has_experts in (False, True):
            interval = errors_of(RunKind(cluster, stack, data_type, has_experts)).around(2.0)
            assert 0 < interval.p5_s <= interval.p25_s <= interval.p75_s <= interval.p95_s < 20.1
            assert interval.basis


def test_a_profile_of_ones_own_has_the_interval_of_the_nearest(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.yaml"
    shutil.copy(find_profile("h100_sxm"), file)
    own = RunKind(str(file), "megatron_core", "bf16", has_experts=False)
    assert widths(own) == pytest.approx([2 * error for error in widths(BF16)])


def test_quantiles_out_of_order_are_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "mine.yaml"
    shutil.copy(find_profile("h100_sxm"), file)
    (tmp_path / "validated_on").mkdir()
    text = (find_profile("h100_sxm").parent / "validated_on/h100_sxm.yaml").read_text("utf-8")
    errors = tmp_path / "validated_on" / "mine.yaml"
    errors.write_text(text.replace("p5: -0.0225", "p5: 0.5"), "utf-8")
    with pytest.raises(InputError, match="must be in order"):
        validated_on(str(file))


def test_results_have_an_interval() -> None:
    result = simulate(load_scenario("llama3_8b"))
    printed = result.to_dict()["interval_s"]
    assert (
        printed["p5"] < printed["p25"] < result.iteration_time_s < printed["p75"] < printed["p95"]
    )
    assert "90 % interval" in call("run", "llama3_8b").stdout


def test_extrapolated_kernel_time_counts_twice() -> None:
    errors = errors_of(BF16)
    narrow, wide = errors.around(1.0), errors.around(1.0, 0.5)
    assert 1 / wide.p5_s - 1 == pytest.approx(1.5 * (1 / narrow.p5_s - 1))
    assert wide.least_difference == 1.5 * narrow.least_difference
    assert wide.basis.endswith("50% of kernel time is extrapolated")


def test_another_machine_counts_twice_if_its_sources_are_doubtful() -> None:
    fitted = RunKind("h200_sxm", "megatron_core", "bf16", has_experts=False)
    doubtful = RunKind("h200_sxm", "megatron_core", "bf16", has_experts=False, is_doubtful=True)
    assert widths(doubtful) == pytest.approx([2 * error for error in widths(fitted)])


def test_runs_on_one_node_and_on_several_are_different_kinds() -> None:
    runs = {
        nodes: errors_of(RunKind("a100_sxm4_80gb", "deepspeed_2022", "fp16", False, nodes))
        for nodes in ("one", "several")
    }
    assert (runs["one"].p5, runs["several"].p5) == (-0.133, -0.3242)

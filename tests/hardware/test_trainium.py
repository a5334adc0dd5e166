"""Trainium: bounds that say so, Neuron's tutorials, and activations as Neuron counts them."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.update.published import tables
from simtrain.hardware.evidence import evidence_of
from simtrain.hardware.load import load_profile, profile_of
from simtrain.iteration.report.result import Result
from simtrain.scenario import Scenario, load_scenario
from simtrain.studies.simulation import simulate
from tests.helpers.toys import layer_ops, saved_bytes

TRAINIUMS = ("trn1", "trn2")
RATES = {run["scenario"]: run["sequences_per_s"] for run in tables()["trainium"]["runs"]}
TUTORIALS = sorted(RATES)


def bound_of(name: str, cluster: str = "trn1") -> Result:
    return simulate(load_scenario(name, [f"cluster={cluster}"]))


@pytest.mark.parametrize("name", TUTORIALS)
def test_no_published_run_of_a_tutorial_is_faster_than_its_bound(name: str) -> None:
    bound = bound_of(name)
    published_s = bound.scenario.batch.global_ / RATES[name]
    assert bound.interval.is_lower_bound and bound.memory_report.fits
    # A bound of a tenth would say nothing: tutorials take 1.7 to 3.02 times theirs.
    assert bound.iteration_time_s < published_s < 3.1 * bound.iteration_time_s


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_trainium2_is_no_faster_than_its_fastest_resource(name: str) -> None:
    """From trn1 to trn2 no entry of a rank improves by more than EFA's, from 3.125 to 6.25 GB/s."""
    first, second = (load_profile(cluster) for cluster in TRAINIUMS)
    ratios = [
        second.gpu.peak_flops.value / first.gpu.peak_flops.value,
        second.gpu.memory_bandwidth.value / first.gpu.memory_bandwidth.value,
        second.links.bandwidth.value / first.links.bandwidth.value,
        second.adapter_share_bytes_per_s / first.adapter_share_bytes_per_s,
    ]
    faster = bound_of(name).iteration_time_s / bound_of(name, "trn2").iteration_time_s
    assert min(ratios) < faster < max(ratios)


def neuron_layer(s: int, b: int, heads: int, t: int, recompute: str) -> Scenario:
    return Scenario.model_validate(
        {
            "model": {
                "num_layers": 1,
                "hidden_size": 8 * heads,
                "num_attention_heads": heads,
                "seq_length": s,
            },
            "parallelism": {"tensor": t, "sequence_parallel": t > 1},
            "batch": {"micro": b, "global": b},
            "recompute": recompute,
            "software": "neuronx_distributed",
            "cluster": "trn1",
        }
    )


@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=20)
def test_a_layer_saves_the_bytes_of_neurons_text(s: int, b: int, heads: int, t: int) -> None:
    """s b h (34 + 5 a s / h) / t, 34 s b h / t with selective recompute, 2 s b h / t with full."""
    s, a = 8 * s, heads * t
    sbh = s * b * 8 * a
    expected = {
        "none": Fraction(sbh, t) * (34 + Fraction(5 * a * s, 8 * a)),
        "selective": Fraction(34 * sbh, t),
        "full": Fraction(2 * sbh, t),
    }
    for recompute, num_bytes in expected.items():
        forward, _ = layer_ops(neuron_layer(s, b, a, t, recompute))
        assert saved_bytes(forward) == num_bytes


def test_a_changed_entry_is_no_bound() -> None:
    changed = load_scenario("neuron_llama2_7b", ("hardware.gemm.sustained_flops=50 TFLOP/s",))
    assert "lower bounds" not in evidence_of(profile_of(changed), changed.cluster).text
    assert not simulate(changed).interval.is_lower_bound
    price = load_scenario("neuron_llama2_7b", ("hardware.running_costs.price=1 USD/h",))
    datasheet = evidence_of(profile_of(price), price.cluster)
    assert datasheet.level == "datasheet" and "lower bounds" in datasheet.text

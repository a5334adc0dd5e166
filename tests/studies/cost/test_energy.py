"""Energy from the powers of what GPUs do, by hand and beside published trainings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simtrain
from simtrain.hardware.load import load_profile
from simtrain.studies.cost.energy import KWH_J, Energy, energy_of

CAUSES = (
    *("compute", "recompute", "launch", "tensor_communication", "pipeline_communication"),
    *("data_communication", "host_copies", "bubble", "optimizer"),
)


def drawn(breakdown_s: dict[str, float], num_gpus: int = 8, goodput: float = 1.0) -> Energy:
    """Return the energy of an hour on H100s."""
    profile = load_profile("h100_sxm")
    ends, nameplate_kwh = (0.9, 1.2), 10.2 * num_gpus / 8
    energy = energy_of(
        profile,
        breakdown_s,
        num_gpus,
        3600.0,
        goodput,
        ends,
        1.0,
        nameplate_kwh,
    )
    assert energy is not None
    return energy


def test_an_hour_by_hand() -> None:
    """Half of it busy, a quarter waiting, a quarter idle, on one node and on two."""
    shares = {"compute": 2.0, "tensor_communication": 1.0, "bubble": 1.0}
    gpus_w = 8 * (700 / 2 + 300 / 4 + 72 / 4)
    node_w = gpus_w + 1630 + 1170
    one, two = drawn(shares), drawn(shares, num_gpus=16)
    assert one.mean == pytest.approx(node_w * 3600 / KWH_J)
    assert two.mean == pytest.approx(2 * (node_w + 2013) * 3600 / KWH_J)
    assert (one.p5, one.p95) == (pytest.approx(0.9 * one.mean), pytest.approx(1.2 * one.mean))
    assert one.nameplate == pytest.approx(10.2)
    assert (one.busy, one.waiting) == (0.5, 0.25)


@given(
    seconds=st.lists(st.floats(0.01, 10), min_size=9, max_size=9),
    goodput=st.floats(0.1, 1),
    num_nodes=st.integers(1, 4),
)
def test_energy_is_between_idle_and_nameplate(
    seconds: list[float], goodput: float, num_nodes: int
) -> None:
    energy = drawn(dict(zip(CAUSES, seconds, strict=True)), 8 * num_nodes, goodput)
    idle_kw = num_nodes * (8 * 0.072 + 2.8)
    assert energy.mean >= idle_kw * (1 - 1e-9)
    assert energy.nameplate is not None
    # Nameplates are of nodes; the switches between them come on top.
    switches_kw = 2.013 * num_nodes if num_nodes > 1 else 0.0
    assert energy.mean <= energy.nameplate + switches_kw


def test_more_waiting_draws_less() -> None:
    busy = drawn({"compute": 3.0, "tensor_communication": 1.0})
    waiting = drawn({"compute": 2.0, "tensor_communication": 2.0})
    assert waiting.mean < busy.mean


def test_a_cost_has_energy_and_its_nameplate() -> None:
    cost = simtrain.cost(simtrain.load_scenario("llama3_70b"), "1B", pue=1.2, co2=332)
    energy = cost.to_dict()["energy_kwh"]
    assert energy["p5"] < energy["mean"] < energy["nameplate"] == cost.site_energy_kwh
    assert cost.co2_t == pytest.approx(energy["mean"] * 332 / 1e6)
    plain = simtrain.cost(simtrain.load_scenario("table5_22b_present"), "1B")
    assert plain.energy is None


def test_an_immersed_node_draws_less_by_its_fans() -> None:
    base = simtrain.load_scenario("llama3_70b")
    immersed = base.replace({"hardware.running_costs.fan_power": "0 W"})
    with_fans, without = (simtrain.cost(each, "1B") for each in (base, immersed))
    assert with_fans.energy and without.energy
    hours, num_nodes = with_fans.time_s / 3600, with_fans.num_gpus / 8
    saved_kwh = with_fans.energy.mean - without.energy.mean
    assert saved_kwh == pytest.approx(1.17 * hours * num_nodes)

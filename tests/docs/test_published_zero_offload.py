"""What ZeRO-Offload and ZeRO-Infinity trained on V100s: what fits, speed-ups, and the gain."""

from typing import Any

import pytest

from docs.update.host_states import delayed_speedup, scenario_of, tflops_of
from docs.update.published.zero_offload import (
    DELAYED_MODELS,
    DELAYED_SPEEDUPS,
    ONE_GPU,
    PYTORCH,
    RUNS,
    SCRIPT,
)
from simtrain.hardware.load import load_profile
from simtrain.iteration.memory.host_memory import HostMemory
from simtrain.iteration.memory.report import memory_report
from simtrain.iteration.plan import Plan
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate

pytestmark = [pytest.mark.slow, pytest.mark.ci]

V100 = load_profile("v100_dgx2")


def plan_of(layers: int, hidden: int, gpus: int, **memory: Any) -> Plan:
    """Return a plan of a model with its states on hosts, and with microbatches of one sequence."""
    states = {"offload_optimizer": True, "offload_gradients": True} | memory
    states |= {"zero_stage": 3} if gpus > 1 else {}
    sizes = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": hidden // 128}
    scenario = Scenario.model_validate(
        {
            "model": sizes | {"seq_length": 1024},
            "parallelism": {"data": gpus},
            "batch": {"micro": 1, "global": gpus},
            "precision": {"compute": "fp16", "gradients": "fp16"},
            "recompute": "full",
            "memory": states,
            "cluster": "v100_dgx2",
        }
    )
    return Plan.of(scenario, V100.cluster.domains_of(gpus))


def test_runs_fit_where_they_did() -> None:
    assert [run.name for run in RUNS if not simulate(scenario_of(run)).memory.fits] == []


@pytest.mark.parametrize(
    ("layers", "hidden", "fits"),
    # 13B are published as the most; 20B are ours, above it.
    [(50, 4096, True), (64, 4096, True), (100, 4096, False)],
)
def test_zero_offload_trains_13b_on_one_gpu(layers: int, hidden: int, fits: bool) -> None:
    assert memory_report(plan_of(layers, hidden, 1), V100).fits == fits


@pytest.mark.parametrize(
    ("layers", "hidden", "gpus", "nvme", "fits"),
    [
        # DeepSpeed's post of March 2021: 40B on one GPU, 1T on 256 and 2T on 512, in 1.5 TB each.
        (50, 8192, 1, "none", True),
        (128, 25600, 256, "none", True),
        (160, 32768, 512, "none", True),
        (160, 32768, 256, "none", False),
        # ZeRO-Infinity: 1T on one DGX-2, 32T on 32 of them.
        (128, 25600, 16, "all", True),
        (276, 98304, 512, "all", True),
        (276, 98304, 256, "all", False),
    ],
)
def test_hosts_and_disks_hold_what_the_papers_train(
    layers: int, hidden: int, gpus: int, nvme: str, fits: bool
) -> None:
    plan = plan_of(layers, hidden, gpus, offload_parameters=True, nvme=nvme)
    assert HostMemory.of(plan, V100, None).fits == fits


def test_throughputs_are_above_the_published_bounds() -> None:
    """Single GPUs are too fast in simtrain, of which no number was fitted to a throughput."""
    for run in RUNS:
        assert tflops_of(run, achievable=True) > abs(run.tflops)
        assert tflops_of(run, achievable=True) < tflops_of(run)
    many = RUNS[-1]
    assert abs(tflops_of(many, achievable=True) / many.tflops - 1) < 0.15
    assert tflops_of(SCRIPT, achievable=True) / SCRIPT.tflops - 1 < 0.2


def test_the_host_updates_after_few_microbatches_in_the_published_script() -> None:
    assert tflops_of(SCRIPT) < 0.85 * tflops_of(ONE_GPU)


def test_offload_gains_about_what_it_did() -> None:
    gain = tflops_of(ONE_GPU) / tflops_of(PYTORCH)
    assert gain == pytest.approx(ONE_GPU.tflops / PYTORCH.tflops, rel=0.15)


def test_a_delayed_update_gains_little_more_than_published() -> None:
    for name in DELAYED_MODELS:
        assert DELAYED_SPEEDUPS[0] < delayed_speedup(name) < 1.05 * DELAYED_SPEEDUPS[1]

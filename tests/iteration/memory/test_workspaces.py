"""Workspaces of matrix products: tensors that live for the whole run, by hand."""

from typing import Any

import pytest

from simtrain.iteration.memory.buffers import WORKSPACES
from simtrain.scenario import Scenario
from simtrain.studies.simulation import simulate_memory

MIB = 2**20
TORCH_A100 = 2 * 4 * MIB + 8 * 16 * 1024
"""PyTorch's default before Hopper, :4096:2:16:8."""
EXPERTS = {"num": 4, "top_k": 2, "ffn_hidden_size": 256}


def scenario(cluster: str = "h100_sxm", software: Any = "megatron_core", **model: Any) -> Scenario:
    sizes = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "seq_length": 256}
    return Scenario.model_validate(
        {
            "model": sizes | {"vocab_size": 1024, "biases": False} | model,
            "batch": {"micro": 1, "global": 4},
            "cluster": cluster,
            "software": software,
        }
    )


def workspaces(one: Scenario) -> list[int]:
    """Return the workspaces at the peak of each stage."""
    return [stage.buffers_bytes.get(WORKSPACES, 0) for stage in simulate_memory(one).stages]


@pytest.mark.parametrize(
    ("cluster", "torch_bytes", "linear_bytes"),
    [
        ("a100_sxm4_80gb", TORCH_A100, 4 * MIB),
        ("h100_sxm", 32 * MIB, 32 * MIB),
        ("h200_sxm", 32 * MIB, 32 * MIB),
        ("b200_sxm", TORCH_A100, 32 * MIB),
    ],
)
def test_pytorch_has_two_workspaces_and_transformer_engine_one_or_five(
    cluster: str, torch_bytes: int, linear_bytes: int
) -> None:
    """One of PyTorch's is of the forward thread, one of autograd's. Grouped products of experts run
    on four streams with a workspace each.
    """
    assert workspaces(scenario(cluster)) == [2 * torch_bytes + linear_bytes]
    assert workspaces(scenario(cluster, experts=EXPERTS)) == [2 * torch_bytes + 5 * linear_bytes]


def test_a_fixed_cublas_workspace_replaces_the_gpus_default() -> None:
    """CUBLAS_WORKSPACE_CONFIG=:4096:8 is 8 x 4 MiB."""
    software = {"stack": "megatron_core", "cublas_workspace": "32 MiB"}
    assert workspaces(scenario("a100_sxm4_80gb", software)) == [2 * 8 * 4 * MIB + 4 * MIB]


def test_userbuffers_have_a_workspace_for_each_of_three_streams() -> None:
    split = {"parallelism.tensor": 2, "parallelism.sequence_parallel": True}
    one = scenario().replace(split)
    assert workspaces(one) == [(2 + 1) * 32 * MIB]
    assert workspaces(one.replace({"overlap.userbuffers": True})) == [(2 + 3) * 32 * MIB]

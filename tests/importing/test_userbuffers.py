"""`simtrain import megatron` with --tp-comm-overlap, which pipelines products with collectives."""

import pytest

from simtrain.importing.megatron.arguments import USERBUFFERS
from tests.helpers.imported import BASE, import_megatron

ON = "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap"


@pytest.mark.parametrize("name", sorted(USERBUFFERS))
def test_arguments_of_userbuffers_that_are_not_modelled_are_noted(name: str) -> None:
    neutral = "True" in USERBUFFERS[name].neutral
    argument = f"--{'disable-' * neutral}{name.replace('_', '-')}"
    value = " cfg.yaml" if name.endswith("cfg") else ""
    scenario, text = import_megatron(f"{BASE} {ON} {argument}{value}")
    assert scenario.overlap.userbuffers
    assert f"# - {argument}" in text
    assert USERBUFFERS[name].text in " ".join(text.replace("# ", "").split())


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("--transformer-impl local", "no effect with"),
        ("--multi-latent-attention", "pipelines some products"),
        ("--fp8-format hybrid --fp8-recipe blockwise", "pipelines products of this recipe"),
    ],
)
def test_userbuffers_that_are_not_simulated_are_noted(other: str, why: str) -> None:
    scenario, text = import_megatron(f"{BASE} {ON} {other}")
    assert not scenario.overlap.userbuffers
    assert "# - --tp-comm-overlap" in text and why in text

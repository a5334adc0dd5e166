"""What a scenario's times leave out, in words for its user."""

from __future__ import annotations

from simtrain.scenario import Scenario

_ALIGNED_CHANNELS = 8


def warnings_of(scenario: Scenario) -> tuple[str, ...]:
    """Sentences about what makes the real iteration slower than the simulated one.

    Tensor Cores are efficient only where rows of 16-bit operands are multiples of 16 bytes
    (NVIDIA, Matrix Multiplication Background User's Guide). A head's channels are such rows in the
    unfused core of attention; the fused kernels refuse them (rule E330).
    """
    channels = scenario.model.kv_channels
    is_fused = scenario.attention_backend == "fused"
    if is_fused or scenario.model.latent_attention or channels % _ALIGNED_CHANNELS == 0:
        return ()
    return (
        f"Heads have {channels} channels, no multiple of {_ALIGNED_CHANNELS}: on the GPU the "
        "batched products of attention are slower than simulated. How much is not modelled.",
    )

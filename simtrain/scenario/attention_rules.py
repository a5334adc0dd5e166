"""What fused attention kernels refuse, and profiles that have no number for them.

That selective recompute runs the fused kernel again is no rule: Megatron-LM checkpoints the core of
attention whatever computes it (core/transformer/attention.py), and so does a scenario.
"""

from __future__ import annotations

from simtrain.scenario.nearest import Fix, divisors
from simtrain.scenario.schema import Scenario
from simtrain.scenario.violation import Rule, Violation, registering

ATTENTION_RULES: list[Rule] = []
_rule = registering(ATTENTION_RULES)

_MOST_CHANNELS, _CHANNELS_STEP = 256, 8


@_rule("E330", "fused kernels take heads of 8, 16, ... 256 channels (FlashAttention-2, cuDNN)")
def _fused_heads(scenario: Scenario) -> Violation | None:
    hidden, heads = scenario.model.hidden_size, scenario.model.num_attention_heads
    if scenario.attention_backend != "fused" or hidden % heads:
        return None
    channels = hidden // heads
    if channels <= _MOST_CHANNELS and channels % _CHANNELS_STEP == 0:
        return None
    return Violation(
        ("attention_backend", "model.num_attention_heads", "model.hidden_size"),
        f"attention_backend is fused, but heads have {channels} channels "
        f"(model.hidden_size {hidden} / model.num_attention_heads {heads})",
        (
            [Fix("attention_backend", "unfused")],
            divisors("model.num_attention_heads", heads, hidden),
        ),
    )


def fused_attention_rule(has_fused_attention: bool) -> Rule:
    """The rule that only a cluster whose profile has the kernel's speed can run it."""

    def check(scenario: Scenario) -> Violation | None:
        if has_fused_attention or scenario.attention_backend != "fused":
            return None
        return Violation(
            ("attention_backend", "cluster"),
            f"attention_backend is fused, but the profile of {scenario.cluster} has no "
            "fused_attention",
            ([Fix("attention_backend", "unfused")],),
        )

    reason = (
        "its time follows from the section fused_attention, which a profile may leave out; "
        "python -m calibrate measure and fit give it"
    )
    return Rule("E331", reason, check)

"""The section of a scenario that says which framework runs it."""

from __future__ import annotations

import functools
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from simtrain.errors import did_you_mean
from simtrain.resources import list_stacks
from simtrain.scenario.section import Section
from simtrain.software import DEFAULT_STACK, Facts, facts_of
from simtrain.strict_yaml import FieldError
from simtrain.units import parse_non_negative_seconds


def _time(text: str) -> str:
    parse_non_negative_seconds(text)
    return text


class Software(Section):
    """The software stack, and entries of it that this scenario sets to other values.

    A word alone (`software: deepspeed_2022`) is the stack's name. An entry that is null is the
    stack's own; docs/software.md lists the stacks that come with simtrain.

    stack: name of a software stack that comes with simtrain.
    fused_softmax: mask and softmax of unfused attention are one kernel.
    fused_rotary: the rotation of queries or of keys is one kernel.
    fused_rms_norm: RMS norm is one kernel.
    fused_activation: bias, activation and gate of the MLP are one kernel.
    fused_dropout_add: bias, dropout and residual are one kernel.
    fused_cross_entropy: the loss is fused, and its logits stay in the compute type.
    fused_gradient_accumulation: the product that computes a weight's gradient also adds it up.
    norm_in_linear: a norm is a part of the linear layer after it, if there is but one
        (Transformer Engine's LayerNormLinear), which matters to recompute.modules alone.
    fused_optimizer: Adam is one pass over its states.
    cuda_graphs: passes are recorded once and launched whole, so no kernel waits for the host.
    fully_shard: memory.zero_stage 3 is PyTorch's fully_shard: fp32 shards, which are the master
        weights; kernels that copy into and out of the collectives' buffers.
    attention_speed: speed of fused attention, relative to the kernel of the hardware profile.
    host_issue: host time to issue a kernel, such as 25 us.
    """

    stack: str = Field(default=DEFAULT_STACK, examples=["deepspeed_2022"])
    fused_softmax: bool | None = Field(default=None, examples=["false"])
    fused_rotary: bool | None = Field(default=None, examples=["false"])
    fused_rms_norm: bool | None = Field(default=None, examples=["false"])
    fused_activation: bool | None = Field(default=None, examples=["false"])
    fused_dropout_add: bool | None = Field(default=None, examples=["false"])
    fused_cross_entropy: bool | None = Field(default=None, examples=["true"])
    fused_gradient_accumulation: bool | None = Field(default=None, examples=["false"])
    norm_in_linear: bool | None = Field(default=None, examples=["true"])
    fused_optimizer: bool | None = Field(default=None, examples=["false"])
    cuda_graphs: bool | None = Field(default=None, examples=["true"])
    fully_shard: bool | None = Field(default=None, examples=["true"])
    attention_speed: Annotated[float, Field(gt=0, le=4)] | None = Field(
        default=None, examples=[0.6]
    )
    host_issue: Annotated[str, AfterValidator(_time)] | None = Field(
        default=None, examples=["25 us"]
    )

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, written: Any) -> Any:
        """The section that a word alone stands for."""
        return written if isinstance(written, (dict, cls)) else {"stack": written}

    @field_validator("stack")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in (known := list_stacks()):
            fix = f"{did_you_mean(name, known)}Known names: {', '.join(known)}"
            raise FieldError((), f'there is no software stack named "{name}"', fix)
        return name

    @property
    def overridden(self) -> dict[str, Any]:
        """The entries that this scenario sets, in base units."""
        found = {name: value for name, value in vars(self).items() if value is not None}
        del found["stack"]
        if self.host_issue is not None:
            found["host_issue"] = parse_non_negative_seconds(self.host_issue)
        return found

    @property
    def facts(self) -> Facts:
        """The stack's facts, with this scenario's values laid over them."""
        return _facts(self)


@functools.lru_cache(maxsize=1024)
def _facts(software: Software) -> Facts:
    return facts_of(software.stack, software.overridden)

"""The section of a scenario that says what is computed, summed and kept in which dtype."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simtrain.scenario.section import Section

Compute = Literal["bf16", "fp16", "fp32", "fp8"]
Fp8RecipeName = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
Fp8Weights = Literal["cached", "gathered", "cast"]
"""Where fp8 products find their weights: in copies of the iteration, in what ZeRO 3 gathers in fp8,
or in casts of bf16 for each use."""
_PRODUCTS_OF = {
    "delayed": "fp8",
    "tensorwise": "fp8",
    "blockwise": "fp8_block",
    "mxfp8": "mxfp8",
}
_BYTES_OF = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 2, "remainder": 2}


class Precision(Section):
    """What is computed, summed and kept in which dtype; names in brackets are Megatron-LM's.

    compute: dtype of weights, activations and products. With fp8 (--fp8-format) it is bf16, but for
        the products of linear layers inside transformer layers, and what they save of their inputs.
    tf32: products of fp32 numbers run on tensor cores, which read 19 bits of them.
    fp8_recipe: how numbers are scaled to fp8 (--fp8-recipe): by the largest of earlier iterations
        (delayed), of the tensor (tensorwise), of each block of 128 numbers (blockwise) or each 32
        (mxfp8).
    fp8_parameters: weights of fp8 products are gathered in fp8 (--fp8-param-gather; torchao's
        enable_fsdp_float8_all_gather). Megatron-LM keeps them in fp8, torchtitan in fp32.
    gradients: dtype in which gradients are summed and reduced.
    exp_avg, exp_avg_sq: dtypes of Adam's moments (--exp-avg-dtype, --exp-avg-sq-dtype).
    main_parameters: what the optimizer keeps of a parameter: fp32, or only the 16 bits that fp32
        has more than bf16 (remainder, Transformer Engine's store_param_remainders).
    """

    compute: Compute = Field(default="bf16", examples=["bf16"])
    tf32: bool = Field(default=False, examples=["true"])
    fp8_recipe: Fp8RecipeName = Field(default="delayed", examples=["tensorwise"])
    fp8_parameters: bool = Field(default=False, examples=["true"])
    gradients: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", examples=["fp32"])
    exp_avg: Literal["fp32", "bf16"] = Field(default="fp32", examples=["bf16"])
    exp_avg_sq: Literal["fp32", "bf16"] = Field(default="fp32", examples=["bf16"])
    main_parameters: Literal["fp32", "remainder"] = Field(default="fp32", examples=["remainder"])

    @property
    def compute_bytes(self) -> int:
        """Bytes of a weight or an activation, unless it is in fp8."""
        return _BYTES_OF[self.compute]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of the gradient that is summed over microbatches and reduced."""
        return _BYTES_OF[self.gradients]

    @property
    def state_bytes(self) -> tuple[int, int, int]:
        """Bytes of the master weight (none beside an fp32 weight), the momentum, the variance."""
        main = 0 if self.compute == "fp32" else _BYTES_OF[self.main_parameters]
        return main, _BYTES_OF[self.exp_avg], _BYTES_OF[self.exp_avg_sq]

    @property
    def product_type(self) -> str:
        """What products multiply that are not in fp8 (`workload.work.ProductType`)."""
        if self.compute != "fp32":
            return "bf16"
        return "tf32" if self.tf32 else "fp32"

    @property
    def linear_product_type(self) -> str:
        """What products of linear layers inside transformer layers multiply."""
        return _PRODUCTS_OF[self.fp8_recipe] if self.compute == "fp8" else self.product_type

    @property
    def narrow_states(self) -> bool:
        """Whether the optimizer keeps less than three fp32 numbers of each parameter."""
        return (self.exp_avg, self.exp_avg_sq, self.main_parameters) != ("fp32",) * 3

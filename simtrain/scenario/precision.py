"""The section `precision` of a scenario: dtypes of compute, gradients and optimizer states."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simtrain.scenario.section import CountOrZero, Section

Compute = Literal["bf16", "fp16", "fp32", "fp8", "fp4"]
GradientType = Literal["fp32", "bf16", "fp16"]
Fp8RecipeName = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
Fp8Weights = Literal["cached", "rows", "gathered", "cast"]
"""How fp8 products get their weights: from fp8 copies that last an iteration (cached), from one
such copy that each backward pass transposes (rows), from a gather of ZeRO stage 3 in fp8
(gathered), or from a cast of the bf16 weight at each use (cast)."""
_PRODUCTS_OF = {
    "delayed": "fp8",
    "tensorwise": "fp8",
    "blockwise": "fp8_block",
    "mxfp8": "mxfp8",
}
BYTES_OF = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 2, "fp4": 2, "remainder": 2}


class Precision(Section):
    """Dtypes of compute, gradients and optimizer states; Megatron-LM's arguments in parentheses.

    compute: dtype of weights, activations and products; bf16 by default. fp8 (--fp8-format) applies
        to the linear layers inside transformer layers and to the inputs that they save; everything
        else is bf16. So does fp4 (--fp4-format), always with the recipe NVFP4.
    tf32: true runs fp32 products on tensor cores, which round the inputs to 19 bits; false by
        default.
    fp8_recipe: how numbers are scaled to fp8 (--fp8-recipe): by the maximum of earlier iterations
        (delayed, default), of the tensor (tensorwise), of each block of 128 numbers (blockwise) or
        of each 32 numbers (mxfp8).
    first_layers_bf16, last_layers_bf16: number of layers at the start, or at the end, that stay in
        bf16 in a model in fp8 or fp4 (--first-last-layers-bf16 with --num-layers-at-start-in-bf16
        and --num-layers-at-end-in-bf16); 0 by default.
    fp8_parameters: true gathers the weights of fp8 products in fp8 (--fp8-param-gather; torchao's
        enable_fsdp_float8_all_gather). Megatron-LM then stores the weights in fp8, torchtitan in
        fp32. With the recipe mxfp8 Megatron-LM gathers bf16 and casts afterwards. With adapters
        (model.lora) nothing is gathered, and frozen weights are held in fp8 alone, without further
        casts. By default the software stack's choice for the recipe.
    fp8_dispatch: true sends tokens to experts, and gradients of their outputs, in fp8 with a scale
        for each block (DeepSeek-V3); what comes back stays bf16. Megatron-LM always sends bf16;
        false by default.
    fp8_activation_inputs: true saves the inputs of SwiGLU in fp8, and casts them back in the
        backward pass (Megatron-Core's activation_func_fp8_input_store); false by default.
    attention_output_bits: bits of each element of attention's output that is saved. With 12, one
        copy serves the backward passes of attention and of its projection (DeepSeek-V3's E5M6);
        16 by default.
    gradients: dtype in which gradients are accumulated and reduced. The software stack sets the
        default of weights in bf16 (nemo has bf16); others have fp32.
    exp_avg, exp_avg_sq: dtype of this moment of Adam (--exp-avg-dtype, --exp-avg-sq-dtype); fp32 by
        default.
    main_parameters: dtype of the optimizer's copy of each parameter: fp32 (default), or remainder,
        the 16 bits that fp32 has beyond bf16 (Transformer Engine's store_param_remainders).
    """

    compute: Compute = Field(default="bf16", examples=["bf16"])
    tf32: bool = Field(default=False, examples=["true"])
    fp8_recipe: Fp8RecipeName = Field(default="delayed", examples=["tensorwise"])
    first_layers_bf16: CountOrZero = Field(default=0, examples=[1])
    last_layers_bf16: CountOrZero = Field(default=0, examples=[4])
    fp8_parameters: bool | None = Field(default=None, examples=["true"])
    fp8_dispatch: bool = Field(default=False, examples=["true"])
    fp8_activation_inputs: bool = Field(default=False, examples=["true"])
    attention_output_bits: Literal[12, 16] = Field(default=16, examples=["12"])
    gradients: GradientType | None = Field(default=None, examples=["fp32"])
    exp_avg: Literal["fp32", "bf16"] = Field(default="fp32", examples=["bf16"])
    exp_avg_sq: Literal["fp32", "bf16"] = Field(default="fp32", examples=["bf16"])
    main_parameters: Literal["fp32", "remainder"] = Field(default="fp32", examples=["remainder"])

    @property
    def casts(self) -> bool:
        """Whether linear layers cast their operands, to fp8 or fp4."""
        return self.compute in ("fp8", "fp4")

    @property
    def weights(self) -> str:
        """Dtype of weights; bf16 if products run in fp8 or fp4."""
        return "bf16" if self.casts else self.compute

    @property
    def compute_bytes(self) -> int:
        """Bytes of an element of a weight or an activation outside fp8 and fp4."""
        return BYTES_OF[self.compute]

    @property
    def state_bytes(self) -> tuple[int, int, int]:
        """Bytes per parameter of the master weight (0 for fp32 weights), momentum and variance."""
        main = 0 if self.compute == "fp32" else BYTES_OF[self.main_parameters]
        return main, BYTES_OF[self.exp_avg], BYTES_OF[self.exp_avg_sq]

    @property
    def product_type(self) -> str:
        """Data type of the products outside fp8 and fp4 (`workload.work.ProductType`)."""
        if self.compute != "fp32":
            return "bf16"
        return "tf32" if self.tf32 else "fp32"

    @property
    def linear_product_type(self) -> str:
        """Data type of the products of linear layers inside transformer layers."""
        if self.compute == "fp4":
            return "nvfp4"
        return _PRODUCTS_OF[self.fp8_recipe] if self.compute == "fp8" else self.product_type

    @property
    def narrow_states(self) -> bool:
        """Whether an optimizer state takes fewer bits than fp32."""
        return (self.exp_avg, self.exp_avg_sq, self.main_parameters) != ("fp32",) * 3

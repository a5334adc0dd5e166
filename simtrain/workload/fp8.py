"""What products in fp8 need beside bf16 products: casts, transposes, scales and copies of weights.

The products of a linear layer multiply fp8 numbers and give bf16 or, as weight gradients, fp32. On
Hopper a product in fp8 reads both operands along the dimension that it sums over, so what the
forward product reads by rows the weight gradient needs transposed. Sources: Transformer Engine 2,
pytorch/module/linear.py, layernorm_linear.py and base.py (`grad_output_preprocess`),
pytorch/distributed.py (`gather_along_first_dim`), pytorch/csrc/extensions/normalization.cpp:

- A cast reads bf16 and writes fp8, by rows, by columns, or both at once.
- delayed: scales follow from earlier iterations; norms write fp8 themselves. Transposes of what a
  norm writes, or of what ranks gather, are kernels of their own.
- tensorwise: a pass over the numbers finds the largest first (a norm finds it on its way), and
  ranks that gather agree on it by an all-reduce of one number.
- blockwise: one scale for each 1 × 128 numbers (weights: 128 × 128). A cast writes both copies;
  ranks that gather send the one that is needed with its scales, or both, and transpose columns
  after.
- mxfp8: one scale of one byte for each 32 numbers along a row or a column. Blackwell's products
  read either copy, so that nothing is transposed.

Grouped products (pytorch/module/grouped_linear.py) cast both copies of each expert's rows and
gather nothing. `Fp8Padding` (pytorch/module/fp8_padding.py) pads the rows of each expert before.

Not modelled: the history of the largest numbers, which delayed scaling updates once a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simtrain.workload.issue import IssueOrder
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Microbatch, Tape
from simtrain.workload.work import (
    FP32_BYTES,
    Collective,
    CollectiveKind,
    KernelFamily,
    ProductType,
)

FP8_BYTES = 1
_BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Fp8Recipe:
    """How numbers are cast to fp8 (Transformer Engine's recipes, Megatron-LM's --fp8-recipe).

    Args:
        dtype: of the products.
        finds_largest: a pass over the numbers finds their scale before a cast.
        norm_casts: norms write fp8 themselves.
        casts_both: copies by rows and by columns are cast together also if ranks gather them.
        transposes: products read along the dimension that they sum over (Hopper).
        block: numbers along a row that share a scale; 0 if all of a tensor do.
        scale_bytes: of a block's scale.
        weight_block: numbers of a weight that share a scale.
        row_multiple: tokens of an expert are padded to a multiple of it.
    """

    dtype: ProductType
    finds_largest: bool = False
    norm_casts: bool = False
    casts_both: bool = False
    transposes: bool = True
    block: int = 0
    scale_bytes: int = 0
    weight_block: int = 0
    row_multiple: int = 16

    def scales_bytes(self, elements: int) -> int:
        """Bytes of the scales of activations or gradients; one number a tensor is not counted."""
        return elements // self.block * self.scale_bytes if self.block else 0

    def copy_bytes(self, elements: int) -> int:
        """Bytes of one copy with its scales."""
        return FP8_BYTES * elements + self.scales_bytes(elements)

    def weight_bytes(self, elements: int) -> int:
        """Bytes of one copy of weights with their scales."""
        scales = elements // self.weight_block * self.scale_bytes if self.weight_block else 0
        return FP8_BYTES * elements + scales


RECIPES: Mapping[str, Fp8Recipe] = MappingProxyType(
    {
        "delayed": Fp8Recipe("fp8", norm_casts=True),
        "tensorwise": Fp8Recipe("fp8", finds_largest=True),
        "blockwise": Fp8Recipe(
            "fp8_block", casts_both=True, block=128, scale_bytes=FP32_BYTES, weight_block=128 * 128
        ),
        "mxfp8": Fp8Recipe(
            "mxfp8",
            casts_both=True,
            transposes=False,
            block=32,
            scale_bytes=1,
            weight_block=32,
            row_multiple=32,
        ),
    }
)
"""The recipes by their names in scenarios."""


def cast_copies(recipe: Fp8Recipe, *, gathered: bool) -> int:
    """Copies that a cast writes: both, unless ranks gather rows and transpose them later."""
    return 1 if gathered and not recipe.casts_both else 2


def issue_casts(
    order: IssueOrder,
    batch: Microbatch,
    name: str,
    elements: int,
    phase: Phase = Phase.FORWARD,
    *,
    gathered: bool = False,
    knows_largest: bool = False,
) -> None:
    """Cast bf16 numbers.

    Args:
        name: of what is cast.
        elements: numbers on this rank.
        gathered: ranks gather the result.
        knows_largest: the kernel before found the largest number.
    """
    recipe, read_bytes = recipe_of(batch), _BF16_BYTES * elements
    if recipe.finds_largest:
        if not knows_largest:
            order.compute(_pass_over(f"{name} largest", read_bytes, 0, phase))
        if gathered:
            work = Collective(CollectiveKind.ALL_REDUCE, FP32_BYTES, batch.tensor)
            order.block(collective(f"{name} largest", work, phase, holds_activation=False))
    write_bytes = cast_copies(recipe, gathered=gathered) * recipe.copy_bytes(elements)
    cast = KernelFamily.CAST
    order.compute(elementwise(f"{name} to fp8", read_bytes, write_bytes, phase, family=cast))


def transpose(name: str, elements: int, phase: Phase) -> Op:
    """The kernel that transposes fp8 numbers."""
    size = FP8_BYTES * elements
    return _pass_over(f"{name} transpose", size, size, phase)


def fp8_tensors(tape: Tape, name: str, rows: int, width: int) -> tuple[Tensor, ...]:
    """A tensor in fp8 and, if it has several, its scales."""
    recipe = recipe_of(tape.microbatch)
    numbers = tape.tensor(name, rows, width, FP8_BYTES)
    if not recipe.block:
        return (numbers,)
    blocks = width // recipe.block
    return numbers, tape.tensor(f"{name} scales", rows, blocks, recipe.scale_bytes)


def recipe_of(batch: Microbatch) -> Fp8Recipe:
    """The recipe of a microbatch whose linear layers multiply in fp8."""
    return RECIPES[batch.fp8_recipe]


def recipe_or_none(batch: Microbatch) -> Fp8Recipe | None:
    """The recipe of a microbatch, or None if its linear layers do not multiply in fp8."""
    return RECIPES[batch.fp8_recipe] if batch.fp8_recipe else None


def _pass_over(name: str, read_bytes: int, write_bytes: int, phase: Phase) -> Op:
    """A kernel that does nothing but stream: as fast as a copy."""
    return elementwise(name, read_bytes, write_bytes, phase, family=KernelFamily.STREAM)

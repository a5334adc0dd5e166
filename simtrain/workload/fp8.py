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

Weights are cast once an iteration, and both copies stay for its microbatches
(pytorch/module/base.py, `get_weight_workspace`), also if ZeRO 3 gathers bf16 for each pass. What it
gathers in fp8 is transposed in each backward pass (Megatron-FSDP without
--keep-fp8-transpose-cache).

torchao (torchao/float8/float8_linear.py and fsdp_utils.py) scales whole tensors, saves inputs in
bf16, and casts inputs again, transposed, for the weight gradient. Weights are cast from bf16 for
each use, or by each rank for its shard before they are gathered, with scales found after the
optimizer step. Compiled kernels are assumed to find the largest number of a norm's output as
Transformer Engine's norms do, and no largest number twice.

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
        saves_bf16: inputs are saved in bf16, and cast again by columns for the weight gradient.
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
    saves_bf16: bool = False

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
        "torchao": Fp8Recipe("fp8", finds_largest=True, saves_bf16=True),
    }
)
"""The recipes by their names in scenarios; torchao's is that of a software stack."""


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
    copies = cast_copies(recipe, gathered=gathered)
    if recipe.saves_bf16 and phase is Phase.FORWARD:
        copies = 1
    order.compute(_cast(f"{name} to fp8", recipe, elements, copies, phase))


def issue_casts_again(order: IssueOrder, batch: Microbatch, name: str, elements: int) -> None:
    """Cast an input that is saved in bf16 by columns, as the weight gradient reads it."""
    recipe = recipe_of(batch)
    if recipe.saves_bf16:
        phase = Phase.WEIGHT_GRADIENT
        order.compute(_cast(f"{name} input to fp8 again", recipe, elements, 1, phase))


def issue_weight_casts(
    order: IssueOrder, batch: Microbatch, name: str, elements: int, phase: Phase = Phase.FORWARD
) -> None:
    """Make the copy of a weight that a forward product or an input gradient reads."""
    recipe, is_forward = recipe_of(batch), phase is Phase.FORWARD
    if batch.fp8_weights == "gathered" and recipe.transposes and not is_forward:
        order.compute(transpose(f"{name} weight", elements, phase).replace(holds_bytes=elements))
    if batch.fp8_weights != "cast":
        return
    if is_forward:
        order.compute(_pass_over(f"{name} weight largest", _BF16_BYTES * elements, 0, phase))
    cast = _cast(f"{name} weight to fp8", recipe, elements, 1, phase)
    order.compute(cast.replace(holds_bytes=recipe.weight_bytes(elements)))


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


def _cast(name: str, recipe: Fp8Recipe, elements: int, copies: int, phase: Phase) -> Op:
    """The kernel that reads bf16 and writes copies in fp8."""
    sizes = _BF16_BYTES * elements, copies * recipe.copy_bytes(elements)
    return elementwise(name, *sizes, phase, family=KernelFamily.CAST)


def _pass_over(name: str, read_bytes: int, write_bytes: int, phase: Phase) -> Op:
    """A kernel that does nothing but stream: as fast as a copy."""
    return elementwise(name, read_bytes, write_bytes, phase, family=KernelFamily.STREAM)

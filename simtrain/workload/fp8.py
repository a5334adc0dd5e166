"""Linear layers in fp8 or fp4: casts, transposes, scales and copies of weights.

The products of a linear layer multiply fp8 operands and write bf16 or, as weight gradients, fp32.
On Hopper an fp8 product reads both operands along the dimension that it sums over. So the weight
gradient needs the transpose of the forward product's input. Sources: Transformer Engine 2,
pytorch/module/linear.py, layernorm_linear.py and base.py (`grad_output_preprocess`),
pytorch/distributed.py (`gather_along_first_dim`), pytorch/csrc/extensions/normalization.cpp:

- A cast reads bf16 and writes fp8, by rows, by columns, or both at once.
- delayed: scales come from earlier iterations, and norms write fp8 themselves. Separate kernels
  transpose the outputs of norms and gathered tensors.
- tensorwise: a kernel finds the absolute maximum before a cast (norms compute it themselves). Ranks
  all-reduce it before a gather.
- blockwise: one scale per 1 × 128 elements (weights: 128 × 128). A cast writes both copies. Ranks
  gather the copy that is needed, or both, with scales, and transpose the column copy afterwards.
- mxfp8: one scale of one byte per 32 elements along a row or a column. Blackwell's products read
  either copy, so there are no transposes.
- nvfp4: 4-bit numbers, one scale of one byte per 16 elements, and one per tensor from two absolute
  maxima: of the rows, and of the columns after a random Hadamard transform along tokens
  (pytorch/csrc/quantizer.cpp, `NVFP4Quantizer`). A kernel, never a norm, finds both, and ranks
  all-reduce both before a gather. The next kernel reads bf16 once, transforms, rounds (gradients
  stochastically) and writes both copies. The transform multiplies 16 × 16 matrices on tensor cores,
  within the time of moving bytes. Columns are stored transposed, so gathered columns
  are rearranged (pytorch/distributed.py, `_post_process_nvfp4_gather`). Scales of weights belong to
  16 × 16 elements, but are stored for each 16 (nvfp4_tensor.py, `get_scale_shape`).

Grouped products (pytorch/module/grouped_linear.py) cast both copies of each expert's rows and
gather nothing. `Fp8Padding` (pytorch/module/fp8_padding.py) pads the rows of each expert first.

Weights are cast once per iteration, and both copies stay for all microbatches
(pytorch/module/base.py, `get_weight_workspace`), even if ZeRO 3 gathers bf16 for each pass. Weights
that ZeRO 3 gathers in fp8 are transposed in each backward pass (Megatron-FSDP without
--keep-fp8-transpose-cache).

torchao (torchao/float8/float8_linear.py and fsdp_utils.py) has one scale per tensor, saves inputs
in bf16, and casts inputs a second time, transposed, for the weight gradient. Weights are cast from
bf16 for each use, or by each rank for its shard before the gather, with scales computed after the
optimizer step. We assume that compiled kernels compute the absolute maximum inside a norm, as
Transformer Engine's norms do, and only once per tensor. With tensor parallelism
(torchao/float8/float8_tensor_parallel.py) tensors are DTensors: all ranks agree on the maximum of
each, ranks cast inputs and gradients before they gather them, and inputs are saved in fp8, as
gathered, and transposed for the weight gradient. Reduce-scatters stay in bf16.

Not modelled: the history of absolute maxima, which delayed scaling updates once per pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simtrain.base.values import dataclass
from simtrain.workload.ops import Op, Phase, Tensor, collective, elementwise
from simtrain.workload.tape import Microbatch, Tape
from simtrain.workload.work import FP32_BYTES, CollectiveKind, KernelFamily, ProductType

FP8_BYTES = 1
_BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Fp8Recipe:
    """How numbers are cast (Transformer Engine's recipes, Megatron-LM's --fp8-recipe).

    Args:
        dtype: data type of the products.
        per_byte: numbers in a byte.
        finds_largest: a kernel finds the absolute maximum before a cast.
        transforms: columns are transformed before the cast, so norms do not compute the absolute
            maximum, and rows and columns have one each.
        norm_casts: norms write fp8 themselves.
        casts_both: a cast writes the row and the column copy, even before a gather.
        transposes: products read along the dimension that they sum over (Hopper).
        block: elements along a row that share a scale; 0 for one scale per tensor.
        scale_bytes: bytes of a block's scale.
        weight_block: elements of a weight that share a scale.
        transposes_weights: blocks of weights are square, so one copy gives the other one.
        row_multiple: rows of each expert are padded to a multiple of it.
        saves_bf16: inputs are saved in bf16, and cast a second time for the weight gradient.
        saves_rows: inputs are saved by rows, as gathered, and transposed for the weight gradient.
        agrees: tensor-parallel ranks agree on the absolute maximum of every tensor.
    """

    dtype: ProductType
    per_byte: int = 1
    finds_largest: bool = False
    transforms: bool = False
    norm_casts: bool = False
    casts_both: bool = False
    transposes: bool = True
    block: int = 0
    scale_bytes: int = 0
    weight_block: int = 0
    transposes_weights: bool = True
    row_multiple: int = 16
    saves_bf16: bool = False
    saves_rows: bool = False
    agrees: bool = False

    @property
    def format(self) -> str:
        return "fp4" if self.per_byte > 1 else "fp8"

    def rearranged_bytes(self, elements: int) -> int:
        """Bytes that the transpose of gathered columns reads and writes; scales only in fp4."""
        return self.copy_bytes(elements) if self.transforms else FP8_BYTES * elements

    def copy_bytes(self, elements: int) -> int:
        """Bytes of activations or gradients with scales; a scale per tensor is not counted."""
        scales = elements // self.block * self.scale_bytes if self.block else 0
        return elements // self.per_byte + scales

    def weight_bytes(self, elements: int) -> int:
        scales = elements // self.weight_block * self.scale_bytes if self.weight_block else 0
        return elements // self.per_byte + scales


RECIPES: Mapping[str, Fp8Recipe] = {
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
        transposes_weights=False,
        row_multiple=32,
    ),
    "nvfp4": Fp8Recipe(
        "nvfp4",
        per_byte=2,
        finds_largest=True,
        transforms=True,
        casts_both=True,
        block=16,
        scale_bytes=1,
        weight_block=16,
        row_multiple=64,
    ),
    "torchao": Fp8Recipe("fp8", finds_largest=True, saves_bf16=True),
    "torchao_sharded": Fp8Recipe("fp8", finds_largest=True, saves_rows=True, agrees=True),
}
"""Recipes by name in scenarios; torchao's two belong to a software stack."""


def cast_copies(batch: Microbatch, *, gathered: bool) -> int:
    """Copies that a cast writes: 2, or 1 if ranks gather rows and transpose them later.

    The second copy is for the weight gradient, so frozen layers cast one.
    """
    transposes_later = gathered and not recipe_of(batch).casts_both
    return 1 if transposes_later or batch.is_frozen else 2


def casts(
    batch: Microbatch,
    name: str,
    elements: int,
    phase: Phase = Phase.FORWARD,
    *,
    gathered: bool,
    knows_largest: bool = False,
    rows_only: bool = False,
) -> Iterator[Op]:
    """Yield the ops that cast a bf16 tensor.

    Args:
        elements: elements on this rank.
        gathered: ranks gather the result.
        knows_largest: the previous kernel has computed the absolute maximum.
        rows_only: the weight gradient makes the copy by columns.
    """
    recipe = recipe_of(batch)
    if recipe.finds_largest:
        label = f"{name} largest"
        if recipe.transforms or not knows_largest:
            yield _pass_over(label, _BF16_BYTES * elements, 0, phase)
        if gathered or recipe.agrees:
            work = CollectiveKind.ALL_REDUCE, (1 + recipe.transforms) * FP32_BYTES, batch.tensor
            yield collective(label, *work, phase, holds_bytes=0)
    name = f"{name} to {recipe.format}"
    copies, is_forward = cast_copies(batch, gathered=gathered), phase is Phase.FORWARD
    later = is_forward and (recipe.saves_bf16 or recipe.saves_rows)
    if rows_only or recasts(batch) or later:
        copies = 1
    yield _cast(name, recipe, elements, copies, phase)
    if recasts(batch) and not (is_forward or batch.is_frozen):
        yield _cast(f"{name} by columns", recipe, elements, 1, phase)


def casts_again(
    batch: Microbatch, name: str, saved: tuple[Tensor, ...], elements: int
) -> Iterator[Op]:
    """Yield the casts for the weight gradient of an input of `elements`.

    What is `saved` is bf16, or a copy by rows. With one scale per tensor, Transformer Engine casts
    both copies again, and torchao one.
    """
    recipe, phase, name = recipe_of(batch), Phase.WEIGHT_GRADIENT, f"{name} input"
    numbers = saved[0]
    if numbers.element_bytes == _BF16_BYTES:
        if recipe.finds_largest and not recipe.saves_bf16:
            size = _BF16_BYTES * numbers.elements
            yield _pass_over(f"{name} largest again", size, 0, phase)
        copies = 1 if recipe.block or recipe.saves_bf16 else 2
        yield _cast(f"{name} to {recipe.format} again", recipe, numbers.elements, copies, phase)
    elif recipe.saves_rows:
        yield transpose(recipe, name, elements, phase)
    elif recasts(batch):
        read_bytes = sum(tensor.num_bytes for tensor in saved)
        sizes = read_bytes, recipe.copy_bytes(elements)
        yield elementwise(f"{name} to columns", *sizes, phase, family=KernelFamily.CAST)


def casts_later(batch: Microbatch, saved: tuple[Tensor, ...]) -> bool:
    """Return whether the weight gradient casts an input again, so that a cast writes only rows."""
    by_rows = recipe_of(batch).saves_rows or recasts(batch)
    return saved[0].element_bytes == _BF16_BYTES or by_rows


def columns(batch: Microbatch, name: str, elements: int, phase: Phase) -> Op:
    """Return the kernel that casts a copy by rows again, by columns."""
    size = recipe_of(batch).copy_bytes(elements)
    return elementwise(f"{name} to columns", size, size, phase, family=KernelFamily.CAST)


def recasts(batch: Microbatch) -> bool:
    """Return whether copies by columns are cast from copies by rows (`Fp8Columns`)."""
    return bool(batch.fp8_recipe) and batch.kernels.fp8_columns == "recast"


def weight_casts(
    batch: Microbatch, name: str, elements: int, phase: Phase = Phase.FORWARD
) -> Iterator[Op]:
    """Yield the ops that make the fp8 copy of a weight, for one product."""
    recipe, is_forward = recipe_of(batch), phase is Phase.FORWARD
    from_rows = batch.fp8_weights in ("gathered", "rows")
    if from_rows and recipe.transposes and not is_forward:
        again = transpose(recipe, f"{name} weight", elements, phase)
        yield again.replace(holds_bytes=elements)
    if batch.fp8_weights != "cast":
        return
    if is_forward:
        label = f"{name} weight largest"
        yield _pass_over(label, _BF16_BYTES * elements, 0, phase)
        if recipe.agrees:
            kind = CollectiveKind.ALL_REDUCE
            yield collective(label, kind, FP32_BYTES, batch.tensor, phase, holds_bytes=0)
    cast = _cast(f"{name} weight to fp8", recipe, elements, 1, phase)
    yield cast.replace(holds_bytes=recipe.weight_bytes(elements))


def transpose(recipe: Fp8Recipe, name: str, elements: int, phase: Phase) -> Op:
    """Return the kernel that transposes a tensor after its cast."""
    size = recipe.rearranged_bytes(elements)
    return _pass_over(f"{name} transpose", size, size, phase)


def fp8_tensors(tape: Tape, name: str, rows: int, width: int) -> tuple[Tensor, ...]:
    """Create an fp8 tensor and, if it has several scales, their tensor."""
    recipe = recipe_of(tape.microbatch)
    numbers = tape.tensor(name, rows, width // recipe.per_byte, 1)
    if not recipe.block:
        return (numbers,)
    blocks = width // recipe.block
    return numbers, tape.tensor(f"{name} scales", rows, blocks, recipe.scale_bytes)


@dataclass(frozen=True, slots=True)
class NarrowCopy:
    """A copy of a bf16 tensor in few bits, saved in its place and cast back in the backward pass.

    Args:
        tensors: the numbers and, if the recipe has them, their scales.
        cast, cast_back: the kernels that write it, and that write bf16 again.
    """

    tensors: tuple[Tensor, ...]
    cast: Op
    cast_back: Op


def narrow_copy(tape: Tape, x: Tensor, bits: int, *, writes_rows: bool = False) -> NarrowCopy:
    """Create a copy of a tensor with `bits` per element.

    With `writes_rows` the cast also writes the fp8 copy by rows for the next product.
    """
    recipe = recipe_or_none(tape.microbatch)
    numbers = tape.tensor(f"{x.name} in {bits} bits", x.rows, x.width * bits // 8, 1)
    tensors: tuple[Tensor, ...] = (numbers,)
    if recipe and recipe.block:
        blocks = x.width // recipe.block
        scales = tape.tensor(f"{numbers.name}, scales", x.rows, blocks, recipe.scale_bytes)
        tensors = numbers, scales
    size, family = sum(tensor.num_bytes for tensor in tensors), KernelFamily.CAST
    written = size + (recipe.copy_bytes(x.elements) if recipe and writes_rows else 0)
    cast = elementwise(f"{x.name} to {bits} bits", x.num_bytes, written, family=family)
    back = f"{x.name} from {bits} bits"
    phase = Phase.INPUT_GRADIENT
    cast_back = elementwise(back, size, x.num_bytes, phase, reads=tensors, family=family)
    return NarrowCopy(tensors, cast, cast_back)


def recipe_of(batch: Microbatch) -> Fp8Recipe:
    """Return the recipe of a microbatch in fp8."""
    return RECIPES[batch.fp8_recipe]


def recipe_or_none(batch: Microbatch) -> Fp8Recipe | None:
    """Return the recipe of a microbatch, or None without fp8."""
    return RECIPES[batch.fp8_recipe] if batch.fp8_recipe else None


def _cast(name: str, recipe: Fp8Recipe, elements: int, copies: int, phase: Phase) -> Op:
    sizes = _BF16_BYTES * elements, copies * recipe.copy_bytes(elements)
    return elementwise(name, *sizes, phase, family=KernelFamily.CAST)


def _pass_over(name: str, read_bytes: int, write_bytes: int, phase: Phase) -> Op:
    return elementwise(name, read_bytes, write_bytes, phase, family=KernelFamily.STREAM)

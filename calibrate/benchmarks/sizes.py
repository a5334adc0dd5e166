"""The sizes of a measurement: those of `calibrate/sizes.yaml`, few of them for `--quick`."""

from dataclasses import dataclass, replace
from enum import StrEnum

from calibrate.records import Compute
from calibrate.torch_model.models import Data, LayerSize, ModelSize, read_sizes


class BenchmarkPart(StrEnum):
    """A part of a measurement."""

    PRODUCTS = "products"
    KERNELS = "kernels"
    COLLECTIVES = "collectives"
    LAYERS = "layers"
    ITERATIONS = "iterations"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes to measure; `calibrate/sizes.yaml` has them and says what each is."""

    budget_s: float
    products: tuple[LayerSize, ...]
    tensor: tuple[int, ...]
    kernel_elements: tuple[int, ...]
    array_bytes: tuple[int, ...]
    attention_heads: tuple[int, ...]
    attention_lengths: tuple[int, ...]
    layers: tuple[LayerSize, ...]
    llama_layers: tuple[LayerSize, ...]
    overlap: LayerSize
    num_iterations: int
    models: tuple[ModelSize, ...] = ()
    host_bytes: tuple[int, ...] = (16 << 20, 64 << 20, 256 << 20)
    compute: Compute = "bf16"
    """Data type of training, which `measure` chooses."""

    @property
    def has_fused_attention(self) -> bool:
        """True for 16-bit types: frameworks have no fused attention for others (E387)."""
        return self.compute != "fp32"

    def in_precision(self, case: Data) -> Data:
        """The plain data of a scenario, in the data type of training."""
        if self.compute == "bf16":
            return case
        case = case | {"precision": {"compute": self.compute}}
        model = case["model"]
        if self.compute == "fp32" and "experts" in model:
            model = model | {"experts": model["experts"] | {"router_dtype": "fp32"}}
        return case | {"model": model}


def sizes_for(device: str, *, quick: bool) -> Sizes:
    """The sizes for "cuda" or "cpu"."""
    from pydantic import TypeAdapter  # imported here: every command's help would load it

    data = read_sizes()
    sizes = TypeAdapter(Sizes).validate_python(data[device])
    if not quick:
        return sizes
    first = {name: getattr(sizes, name)[:number] for name, number in data["quick"].items()}
    small = tuple(size for size in sizes.array_bytes[::4] if size <= 4 << 20)
    budget_s = sizes.budget_s / 4
    return replace(sizes, budget_s=budget_s, num_iterations=5, array_bytes=small, **first)

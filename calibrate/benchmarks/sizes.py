"""The sizes of a measurement: those of `calibrate/sizes.yaml`, few of them for `--quick`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from calibrate.torch_model.models import Data, gpt, llama

_FILE = Path(__file__).parents[1] / "sizes.yaml"


class Part(StrEnum):
    """A part of a measurement."""

    PRODUCTS = "products"
    KERNELS = "kernels"
    COLLECTIVES = "collectives"
    LAYERS = "layers"
    ITERATIONS = "iterations"


@dataclass(frozen=True, slots=True)
class LayerSize:
    """An undivided layer and its microbatch.

    A Llama layer has `groups` of queries, and a gated MLP of `ffn` channels or `experts` of them.
    """

    hidden: int
    heads: int
    seq_length: int
    microbatch: int
    groups: int = 0
    ffn: int = 0
    experts: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.seq_length * self.microbatch

    def model(self, num_layers: int = 1) -> Data:
        """A model of such layers, as plain data of a scenario."""
        sizes = num_layers, self.hidden, self.heads, self.seq_length
        if not self.groups:
            return gpt(*sizes)
        return llama(*sizes, groups=self.groups, ffn=self.ffn, experts=self.experts)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model that is trained, its vocabulary and microbatch."""

    vocab: int
    num_layers: int
    layer: LayerSize


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes to measure.

    Args:
        budget_s: about the time of each timing.
        products: layers whose products are measured, divided by each of `tensor`.
        dtypes: further data types of the first layer, undivided (fp8 if the device multiplies it).
        kernel_elements, array_bytes: sizes of memory-bound kernels and of collectives.
        attention_heads, attention_lengths: sizes of fused attention; heads of all sequences.
        layers, llama_layers: layers of the paper and of Llama.
        overlap: the layer whose products overlap collectives.
        models: models that are trained, each for `num_iterations` timed iterations.
        host_bytes: sizes of copies and Adam steps of a GPU's host.
    """

    budget_s: float
    products: tuple[LayerSize, ...]
    tensor: tuple[int, ...]
    dtypes: tuple[str, ...]
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


def sizes_for(device: str, *, quick: bool) -> Sizes:
    """The sizes for "cuda" or "cpu"."""
    # Imported here: every command's help would load them.
    from pydantic import TypeAdapter
    from ruamel.yaml import YAML

    sizes = TypeAdapter(Sizes).validate_python(YAML(typ="safe").load(_FILE)[device])
    if not quick:
        return sizes
    return replace(
        sizes,
        budget_s=sizes.budget_s / 4,
        products=sizes.products[:2],
        tensor=sizes.tensor[:2],
        dtypes=(),
        kernel_elements=sizes.kernel_elements[:3],
        array_bytes=tuple(size for size in sizes.array_bytes[::4] if size <= 4 << 20),
        attention_heads=sizes.attention_heads[:2],
        attention_lengths=sizes.attention_lengths[:2],
        layers=sizes.layers[:2],
        llama_layers=sizes.llama_layers[:2],
        models=sizes.models[:3],
        host_bytes=sizes.host_bytes[:2],
        num_iterations=5,
    )

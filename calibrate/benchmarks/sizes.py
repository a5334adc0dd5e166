"""The sizes of a measurement: small ones for CPUs, real ones for GPUs, few for `--quick`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Part(StrEnum):
    """A part of a measurement."""

    PRODUCTS = "products"
    KERNELS = "kernels"
    COLLECTIVES = "collectives"
    LAYERS = "layers"
    ITERATIONS = "iterations"


@dataclass(frozen=True, slots=True)
class LayerSize:
    """An undivided layer and its microbatch."""

    hidden: int
    heads: int
    seq_length: int
    microbatch: int

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.seq_length * self.microbatch


@dataclass(frozen=True, slots=True)
class LlamaSize(LayerSize):
    """A Llama layer: `groups` of queries, a gated MLP of `ffn` channels or `experts` of them."""

    groups: int
    ffn: int
    experts: int = 0


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
        num_iterations: timed iterations of each model.
        host_bytes: sizes of copies and Adam steps of a GPU's host.
        is_quick: trains small models only.
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
    llama_layers: tuple[LlamaSize, ...]
    overlap: LayerSize
    num_iterations: int
    host_bytes: tuple[int, ...] = (16 << 20, 64 << 20, 256 << 20)
    is_quick: bool = False


def sizes_for(device: str, *, quick: bool) -> Sizes:
    """The sizes for "cuda" or "cpu"."""
    sizes = {"cuda": _CUDA, "cpu": _CPU}[device]
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
        host_bytes=sizes.host_bytes[:2],
        num_iterations=5,
        is_quick=True,
    )


_ARRAY_BYTES = tuple(1 << power for power in range(10, 31))
"""1 KiB to 1 GiB."""


def _layers(*sizes: tuple[int, int, int, int]) -> tuple[LayerSize, ...]:
    """Layers by hidden size, heads, tokens per sequence and sequences of a microbatch."""
    return tuple(LayerSize(*each) for each in sizes)


_CPU = Sizes(
    budget_s=0.4,
    products=_layers((256, 4, 256, 2), (512, 8, 256, 2), (1024, 16, 256, 1), (768, 12, 512, 1)),
    tensor=(1, 2, 4),
    dtypes=("fp32",),
    kernel_elements=tuple(1 << power for power in (16, 18, 20, 22, 24)),
    array_bytes=_ARRAY_BYTES[:-4],
    attention_heads=(4, 16, 8),
    attention_lengths=(128, 512, 256, 1024),
    layers=_layers((512, 8, 128, 2), (256, 4, 256, 1), (1024, 16, 256, 1), (768, 12, 512, 1)),
    llama_layers=(
        LlamaSize(512, 8, 128, 2, groups=4, ffn=1408),
        LlamaSize(512, 8, 128, 2, groups=4, ffn=512, experts=8),
        LlamaSize(1024, 16, 256, 1, groups=4, ffn=2816),
    ),
    overlap=LayerSize(512, 8, 256, 2),
    num_iterations=15,
)
_CUDA_LAYERS = _layers(
    (4096, 32, 2048, 1), (6144, 64, 2048, 4), (2048, 16, 2048, 4), (8192, 64, 2048, 1)
)
_CUDA = Sizes(
    budget_s=0.4,
    products=_CUDA_LAYERS + _layers((12288, 96, 2048, 1), (1024, 16, 1024, 8)),
    tensor=(1, 2, 4, 8),
    dtypes=("fp16", "fp32", "fp8"),
    kernel_elements=tuple(1 << power for power in range(16, 30, 2)),
    array_bytes=_ARRAY_BYTES,
    attention_heads=(16, 64, 8, 32),
    attention_lengths=(1024, 4096, 2048, 8192),
    layers=_CUDA_LAYERS,
    llama_layers=(
        LlamaSize(4096, 32, 4096, 1, groups=8, ffn=14336),
        LlamaSize(4096, 32, 4096, 1, groups=8, ffn=14336, experts=8),
        LlamaSize(8192, 64, 4096, 1, groups=8, ffn=28672),
    ),
    overlap=_CUDA_LAYERS[0],
    num_iterations=15,
)

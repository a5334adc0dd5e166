"""Script that measures tiny sizes as one rank, which the environment names: FOLDER PART... [fit]"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from calibrate.benchmarks.measure import measure
from calibrate.benchmarks.sizes import BenchmarkPart, Sizes
from calibrate.torch_model.models import LayerSize
from simtrain.errors import InputError

_LAYER = LayerSize(64, 2, 32, 1)
TINY = Sizes(
    budget_s=0.01,
    products=(_LAYER,),
    tensor=(1,),
    kernel_elements=(65536,),
    array_bytes=(1024, 65536),
    attention_heads=(2, 4),
    attention_lengths=(32, 64),
    layers=(_LAYER, LayerSize(64, 2, 64, 1)),
    llama_layers=(
        LayerSize(64, 4, 32, 1, groups=2, ffn=96),
        LayerSize(64, 4, 32, 1, groups=2, ffn=32, experts=4),
    ),
    overlap=_LAYER,
    num_iterations=2,
)


FITTED = replace(TINY, array_bytes=(1024, 4096, 65536, 262144))
"""As many sizes of each collective as a fit needs."""


def main() -> None:
    """Measure FITTED if the last word is `fit`, else TINY."""
    torch.set_num_threads(1)
    folder, *words = sys.argv[1:]
    parts = [BenchmarkPart(word) for word in words if word != "fit"]
    try:
        sizes = FITTED if words[-1] == "fit" else TINY
        measure(Path(folder), "cpu", sizes, parts, dtype="bf16")
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

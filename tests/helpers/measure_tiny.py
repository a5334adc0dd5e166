"""Sizes of measurements that take seconds."""

from calibrate.benchmarks.sizes import Sizes
from calibrate.torch_model.models import LayerSize

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

"""The measured models, as plain data of scenarios."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

Data = dict[str, Any]

_LLAMA: Data = {
    "activation": "swiglu",
    "normalization": "rms_norm",
    "position_embedding": "rope",
    "biases": False,
    "hidden_dropout": 0,
    "attention_dropout": 0,
    "tied_embeddings": False,
}


@dataclass(frozen=True, slots=True)
class LayerSize:
    """An undivided layer and its microbatch: the paper's, or Llama's if it has `groups` of queries.

    Llama's has a gated MLP of `ffn` channels, or `experts` of them, two for each token; no biases
    and no dropout.
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
        return self.seq_length * self.microbatch

    def model(self, num_layers: int = 1) -> Data:
        """A model of such layers."""
        sizes: Data = {"num_layers": num_layers, "hidden_size": self.hidden}
        sizes |= {"num_attention_heads": self.heads, "seq_length": self.seq_length}
        if not self.groups:
            return sizes
        mlp: Data = {"ffn_hidden_size": self.ffn}
        if self.experts:
            mlp = {"experts": mlp | {"num": self.experts, "top_k": 2}}
        return sizes | {"num_query_groups": self.groups} | mlp | _LLAMA


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model: its layers alone, or `whole` with a vocabulary (`vocab` 0 is the default's)."""

    num_layers: int
    layer: LayerSize
    vocab: int = 0
    whole: bool = False


def read_sizes() -> Data:
    """The plain data of calibrate/sizes.yaml."""
    # Imported here: every command's help would load it.
    from simtrain.base.strict_yaml import load_document

    data: Data = load_document(Path(__file__).parents[1] / "sizes.yaml").data
    return data


def expert_split(model: Data, tensor: int) -> Data:
    """The split of a layer's experts, if it has any, over its tensor-parallel ranks."""
    return {"expert": tensor, "expert_tensor": 1} if "experts" in model and tensor > 1 else {}

"""Refuse models with parts that simtrain does not have, by the names of their classes."""

from __future__ import annotations

import re

from simtrain.errors import InputError, Location

_PARTS = {
    r"mamba|nemotron-?h\b|nemotronh|hybrid": "the Mamba layers",
    r"hyena|evo2": "the Hyena layers",
    r"qwen3[_-]?next|qwen3[._]?5|qwen35|gated_?delta": "linear attention in most layers",
    r"deepseek[_-]?v4|dsv32|glm-?5": "attention with an index of the tokens that each query reads",
    r"(?<![a-z0-9])t5(?![0-9])": "T5's decoder with attention to an encoder",
    r"bert|embedding|reranker": "attention to later tokens, and other heads",
    r"(?:^|[^a-z])vl(?:[^a-z]|$)|vlmodel|vision|llava|neva|mllama|clip|omni|audio|flux|wan|dit\b|"
    r"diffusion|imagen|speech|vit\b": "the encoder of images or sounds",
    r"retro": "the retrieval encoder",
    r"chatglm|baichuan": "the family's positions (2D rotary embeddings or ALiBi)",
}
"""The part that is missing, by a pattern in the name of a class, module or model."""


def refuse_family(name: str, place: Location | None) -> None:
    """Check that the name of a class or model is not of a kind that simtrain does not have.

    Raises:
        InputError: the model has such a part (E877).
    """
    for pattern, part in _PARTS.items():
        if re.search(pattern, name[:500].lower()):
            raise InputError.of(
                "E877",
                f"{name[:100]} is a model with a part that simtrain does not have: {part}",
                place,
                "import a model of transformer layers only",
                "a GPT without this part would give a wrong time and memory",
            )

"""Refuse models with parts that simtrain does not have, in place of leaving the part out."""

from __future__ import annotations

import re

from simtrain.errors import InputError
from simtrain.importing.megatron.arguments import OTHER_MODELS
from simtrain.importing.megatron.source import Source
from simtrain.importing.settings import Setting

_BERT = "BERT's attention to later tokens, and its heads"
_T5 = "T5's decoder with attention to an encoder"
_VISION = "the vision encoder"
_SCRIPTS = {
    "bert": _BERT,
    "t5": _T5,
    "vlm": _VISION,
    "vit": _VISION,
    "vision": _VISION,
    "multimodal": _VISION,
    "llava": _VISION,
    "mimo": _VISION,
    "dino": _VISION,
    "inpaint": _VISION,
    "retro": "the retrieval encoder",
    "ict": "the second encoder",
    "realm": "the second encoder",
    "biencoder": "the second encoder",
}
"""The part that is missing, for each word in the names of training scripts."""


def refuse_other_models(source: Source) -> None:
    """Check that the training script and the arguments describe a GPT model.

    Raises:
        InputError: the model has a part that simtrain does not have.
    """
    if source.script:
        words = re.split(r"[^a-z0-9]+", source.script.value.rpartition("/")[2].lower())
        part = next((_SCRIPTS[word] for word in words if word in _SCRIPTS), None)
        if part:
            raise missing_part(source.script, source.script.value, part)
    for name, effect in OTHER_MODELS.items():
        setting = source.arguments.get(name)
        if setting and effect.applies(setting.value):
            raise missing_part(setting, setting.words, effect.text)
    positions = source.arguments.get("position_embedding_type")
    if positions and positions.value in ("alibi", "relative"):
        part = "a bias by relative position in attention"
        raise missing_part(positions, positions.words, part)


def missing_part(setting: Setting, words: str, part: str) -> InputError:
    """Return the error about a model with a part that simtrain does not have."""
    return InputError.of(
        "E877",
        f"{words} trains a model with a part that simtrain does not have: {part}",
        setting.place,
        "import a model of transformer layers only",
        "a GPT without this part would give a wrong time and memory",
    )

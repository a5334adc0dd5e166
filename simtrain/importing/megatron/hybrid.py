"""Find the layers of Megatron-LM's hybrid models, and refuse models that simtrain has not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simtrain.base.strict_yaml import FieldError
from simtrain.importing.megatron.source import Source
from simtrain.importing.settings import Setting
from simtrain.scenario.model import MAMBA, checked_pattern
from simtrain.scenario.pipeline_layout import layout_of_chunks

if TYPE_CHECKING:
    from simtrain.importing.megatron.draft import MegatronDraft


from simtrain.errors import InputError
from simtrain.importing.megatron.arguments import OTHER_MODELS

PATTERNS = "hybrid_layer_pattern", "hybrid_override_pattern"
_SIZES = "mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups"
_STAGE, _PREDICTION = "|", "/"


@dataclass(frozen=True, slots=True)
class HybridPattern:
    """The pattern of a hybrid model.

    Args:
        stages: the letters of the layers of each chunk of a pipeline; a single one if the pattern
            does not say them.
        argument: the argument that has the pattern; None if all layers are Mamba-2.
    """

    stages: tuple[str, ...]
    argument: Setting | None = None

    @property
    def letters(self) -> str:
        """The letters of all layers."""
        return "".join(self.stages)


def read_pattern(source: Source, layers: int | None) -> HybridPattern | None:
    """Return the pattern of a hybrid model, or None for other models.

    Args:
        source: the arguments.
        layers: number of layers, if an argument says it.

    Raises:
        InputError: a layer is of a kind that is not simulated, or the arguments have only the
            shares of each kind of layers (E877).
    """
    arguments = source.arguments
    patterns = (_given(arguments.get(name)) for name in PATTERNS)
    pattern = next((setting for setting in patterns if setting), None)
    if pattern is not None:
        return _parsed(pattern)
    if not _is_hybrid(source):
        return None
    for name in ("hybrid_attention_ratio", "hybrid_mlp_ratio"):
        ratio = _given(arguments.get(name))
        if ratio is not None and ratio.value not in ("0", "0.0"):
            part = f"layers that a ratio places: write {_spelled(ratio)} and the layers in it"
            raise missing_part(ratio, ratio.words, part)
    return HybridPattern((MAMBA * layers,)) if layers else None


def set_pattern(draft: MegatronDraft, pattern: HybridPattern) -> None:
    """Set the pattern and the sizes of Mamba-2 layers."""
    name = pattern.argument.name if pattern.argument else "is_hybrid_model"
    otherwise = "all layers of a hybrid model without a pattern"
    draft.set("model.layer_pattern", pattern.letters, name, otherwise=otherwise)
    if MAMBA in pattern.letters:
        draft.copy(*_SIZES)


def set_pattern_stages(draft: MegatronDraft, pattern: HybridPattern) -> None:
    """Set the layout from a pattern that says which layers each chunk has."""
    chunks = ["t" * len(stage) for stage in pattern.stages]
    chunks[0], chunks[-1] = f"E{chunks[0]}", f"{chunks[-1]}L"
    name = pattern.argument.name if pattern.argument else ""
    draft.set("parallelism.layout", layout_of_chunks(chunks), name)
    if len(chunks) >= 2 * draft.pipeline:
        draft.set("parallelism.interleave", len(chunks) // draft.pipeline, name)


def _given(setting: Setting | None) -> Setting | None:
    """Return a setting unless a log prints it as not set, or its value is unknown."""
    is_given = setting and setting.value not in ("None", "") and not setting.unknown
    return setting if is_given else None


def _spelled(ratio: Setting) -> str:
    return "--hybrid-override-pattern" if ratio.spelled.startswith("--") else PATTERNS[1]


def _is_hybrid(source: Source) -> bool:
    """Whether a flag, the specification of layers or the training script says hybrid."""
    flag, spec = source.arguments.get("is_hybrid_model"), source.arguments.get("spec")
    if flag is not None and flag.value == "True":
        return True
    texts = [spec.value] if spec else []
    if source.script:
        texts.append(source.script.value.rpartition("/")[2])
    return any(re.search(r"mamba|hybrid", text.lower()) for text in texts)


def _parsed(argument: Setting) -> HybridPattern:
    letters, _, predictions = argument.value.strip("\"'").partition(_PREDICTION)
    if predictions.replace(_PREDICTION, ""):
        part = "token prediction after a hybrid model"
        raise missing_part(argument, argument.words, part)
    try:
        checked_pattern(letters.replace(_STAGE, ""))
    except FieldError as error:
        raise missing_part(argument, argument.words, str(error)) from None
    return HybridPattern(tuple(letters.split(_STAGE)), argument)


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

"""Megatron-Core's notation for the layers of each pipeline chunk, such as Et*3|(tt|)*29mL.

Source: `parse_str_to_list` in core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from simtrain.base.strict_yaml import FieldError

EXAMPLE = "Et*5|(t*6|)*6t*7L"
_FIX = f"write the chunks as in {EXAMPLE}"
_LETTERS = "EtmL"
# First groups, then single characters, as in Megatron-Core: groups are not nested.
_REPETITIONS = (re.compile(r"\(([^()]+)\)\*(\d+)"), re.compile(r"(.)\*(\d+)"))
_MOST_REPETITIONS = 1000
MOST_CHARACTERS = 10_000
"""Length of a layout as it is written."""
MOST_LETTERS = 100_000
"""Length of a layout whose repetitions are written out."""


@dataclass(frozen=True, slots=True)
class ChunkContents:
    """What each chunk (virtual stage) of a pipeline contains.

    Args:
        layers: [virtual stages], number of layers.
        prediction: number of the chunk with the modules of token prediction; None without them.
        num_predictions: number of these modules.
    """

    layers: tuple[int, ...]
    prediction: int | None = None
    num_predictions: int = 0

    @property
    def separates_loss(self) -> bool:
        """Whether token prediction is in another chunk than the loss."""
        return self.prediction is not None and self.prediction < len(self.layers) - 1

    @property
    def sent_states(self) -> tuple[int, ...]:
        """[virtual stages], hidden states that each one sends to the next one."""
        number = len(self.layers)
        if self.prediction is None:
            return (1,) * number
        return tuple(self.received_states(chunk) for chunk in range(1, number + 1))

    def received_states(self, chunk: int) -> int:
        """Hidden states that a chunk receives: one, and one of each module in earlier chunks."""
        is_later = self.prediction is not None and chunk > self.prediction
        return 1 + self.num_predictions * is_later


@functools.lru_cache(maxsize=1024)
def chunks_of_layout(layout: str) -> tuple[str, ...]:
    """Return the letters of each chunk: E embedding, t layer, m token prediction, L loss.

    Raises:
        FieldError: Megatron-Core cannot read the layout, or it repeats too often.
    """
    text = layout.replace(",", "")
    for pattern in _REPETITIONS:
        if _expanded_length(text, pattern) > MOST_LETTERS:
            raise FieldError((), f"has more than {MOST_LETTERS} letters", _FIX)
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    chunks = tuple(text.split("|"))
    if unknown := sorted({*text} - {*_LETTERS, "|"}):
        message = f"{''.join(unknown)!r} is neither one of {', '.join(_LETTERS)} nor | between "
        raise FieldError((), f"{message}chunks, *n after a letter, or (...)*n", _FIX)
    return chunks


def layers_of_layout(layout: str) -> tuple[int, ...]:
    """[virtual stages], number of transformer layers of each chunk."""
    return tuple(chunk.count("t") for chunk in chunks_of_layout(layout))


def layout_of_chunks(chunks: Iterable[str]) -> str:
    """Return the layout with these letters in its chunks, with runs as t*4 and (t*4|)*3."""
    *others, last = (re.sub("t{2,}", lambda match: f"t*{len(match[0])}", chunk) for chunk in chunks)
    runs = ((chunk, len([*same])) for chunk, same in itertools.groupby(others))
    texts = (f"({chunk}|)*{times}" if times > 2 else f"{chunk}|" * times for chunk, times in runs)
    return "".join(texts) + last


def checked_layout(layout: str) -> str:
    """Return the layout if `chunks_of_layout` can read it."""
    chunks_of_layout(layout)
    return layout


def _expanded_length(text: str, repetitions: re.Pattern[str]) -> int:
    """Return the length of a layout with its repetitions written out, before that is done."""
    length = len(text)
    for match in repetitions.finditer(text):
        times = match[2]
        if len(times) > len(str(_MOST_REPETITIONS)) or int(times) > _MOST_REPETITIONS:
            raise FieldError((), f"*{times:.9} repeats more than {_MOST_REPETITIONS} times", _FIX)
        length += len(match[1]) * int(times) - len(match[0])
    return length

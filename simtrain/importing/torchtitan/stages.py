"""torchtitan's splits of a model into stages, as the chunks of a pipeline layout.

Source: `pipeline_module_split` and the split points before it in torchtitan's
distributed/pipeline_parallel.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

_LAYER = re.compile(r"layers\.(\d{1,6})")

_MODULES = {"E": ["tok_embeddings"], "L": ["norm", "output"], "m": ["mtp_layers.0"]}


def chunks_of_sizes(sizes: Sequence[int]) -> list[str]:
    """Return the letters of chunks with these numbers of layers, with embedding and output."""
    chunks = ["t" * size for size in sizes]
    chunks[0], chunks[-1] = f"E{chunks[0]}", f"{chunks[-1]}L"
    return chunks


def ends_of_chunks(chunks: Sequence[str]) -> tuple[int, int] | None:
    """Return the layers of the first and last chunk, if all others have equally many."""
    sizes = [chunk.count("t") for chunk in chunks]
    is_plain = [*chunks] == chunks_of_sizes(sizes) and min(sizes) > 0
    return (sizes[0], sizes[-1]) if is_plain and len({*sizes[1:-1]}) <= 1 else None


def modules_of_chunks(chunks: Sequence[str]) -> list[list[str]]:
    """Return the names of the modules of chunks with these letters."""
    modules, layer = list[list[str]](), 0
    for letters in chunks:
        names: list[str] = []
        for letter in letters:
            names += [f"layers.{layer}"] if letter == "t" else _MODULES[letter]
            layer += letter == "t"
        modules.append(names)
    return modules


def _chunks_between(points: Any, num_layers: int) -> list[str]:
    """Return the chunks that begin with these layers, after a first one; none if out of order."""
    matches = [_LAYER.fullmatch(str(name)) for name in points] if isinstance(points, list) else []
    starts = [int(match[1]) for match in matches if match]
    sizes = [end - start for start, end in pairwise([0, *starts, num_layers])]
    return chunks_of_sizes(sizes) if matches and all(matches) and min(sizes[1:]) > 0 else []


def _chunks_of_modules(parts: Any, num_layers: int) -> list[str]:
    """Return the chunks with modules of these names; none if they are not the model's."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return []
    text = "|".join(",".join(map(str, part)) for part in parts)
    in_order = _LAYER.findall(text) == [*map(str, range(num_layers))]
    text = _LAYER.sub("t", text).replace("tok_embeddings", "E").replace("norm,output", "L")
    are_known = re.fullmatch(r"[EtL]([,|][EtL])*", text)
    return text.replace(",", "").split("|") if in_order and are_known else []


SPLITS: dict[str, tuple[Callable[[Any, int], list[str]], str]] = {
    "parallelism.module_fqns_per_model_part": (
        _chunks_of_modules,
        "write the names of each stage: tok_embeddings, layers.0 and so on, norm, output",
    ),
    "parallelism.pipeline_parallel_split_points": (
        _chunks_between,
        "write layers in order, such as layers.4: the first of each stage but stage 0",
    ),
}
"""For each key that splits a model, its reader, given the number of layers, and a remedy."""

"""All importers. A new one is a class in a file of its own and a place here."""

from __future__ import annotations

from simtrain.importing.importers.deepspeed import DeepSpeed
from simtrain.importing.importers.hugging_face import HuggingFace
from simtrain.importing.importers.importer import Importer
from simtrain.importing.importers.megatron import Megatron
from simtrain.importing.importers.megatron_bridge import MegatronBridge
from simtrain.importing.importers.nemo import Nemo
from simtrain.importing.importers.torchtitan import Torchtitan

# A script that starts DeepSpeed is a shell script too.
IMPORTERS: tuple[Importer, ...] = (
    DeepSpeed(),
    Megatron(),
    HuggingFace(),
    Torchtitan(),
    MegatronBridge(),
    Nemo(),
)


def importer_of(text: str) -> Importer | None:
    """Return the importer of a file with this text; None for scenarios and unknown files."""
    return next(
        (importer for importer in IMPORTERS if any(kind.sign_in(text) for kind in importer.kinds)),
        None,
    )

"""All importers. A new one is a class in a file of its own and a place here."""

from __future__ import annotations

from simtrain.base.plug_ins import Parts
from simtrain.importing.importers.deepspeed import DeepSpeed
from simtrain.importing.importers.hugging_face import HuggingFace
from simtrain.importing.importers.importer import Importer
from simtrain.importing.importers.megatron import Megatron
from simtrain.importing.importers.megatron_bridge import MegatronBridge
from simtrain.importing.importers.nemo import Nemo
from simtrain.importing.importers.torchtitan import Torchtitan

# A script that starts DeepSpeed is a shell script too.
_HOUSE: tuple[Importer, ...] = (
    DeepSpeed(),
    Megatron(),
    HuggingFace(),
    Torchtitan(),
    MegatronBridge(),
    Nemo(),
)
IMPORTERS = Parts[Importer]("importers", Importer, _HOUSE)


def importer_of(text: str) -> Importer | None:
    """Return the importer of a file with this text; None for scenarios and unknown files."""
    return next(
        (each for each in IMPORTERS.values() if any(kind.sign_in(text) for kind in each.kinds)),
        None,
    )

"""All importers. A new one is a class in a file of its own and a place here."""

from __future__ import annotations

from simtrain.importing.importers.hugging_face import HuggingFace
from simtrain.importing.importers.importer import Importer
from simtrain.importing.importers.megatron import Megatron
from simtrain.importing.importers.torchtitan import Torchtitan

IMPORTERS: tuple[Importer, ...] = (Megatron(), HuggingFace(), Torchtitan())

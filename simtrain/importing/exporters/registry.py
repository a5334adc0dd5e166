"""All exporters. A new one is a class in a file of its own and a place here."""

from __future__ import annotations

from simtrain.base.plug_ins import Parts
from simtrain.importing.exporters.deepspeed import DeepSpeedScript
from simtrain.importing.exporters.exporter import Exporter
from simtrain.importing.exporters.megatron import MegatronScript
from simtrain.importing.exporters.torchtitan import TorchtitanJob

_HOUSE: tuple[Exporter, ...] = (MegatronScript(), DeepSpeedScript(), TorchtitanJob())
EXPORTERS = Parts[Exporter]("exporters", Exporter, _HOUSE)

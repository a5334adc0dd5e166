"""All exporters, found by their entry points `simtrain.exporters`."""

from __future__ import annotations

from simtrain.base.plug_ins import Parts
from simtrain.importing.exporters.exporter import Exporter

EXPORTERS = Parts[Exporter]("exporters", Exporter, ())

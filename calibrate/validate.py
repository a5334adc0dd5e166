"""A folder of measurements for `simtrain validate`."""

from __future__ import annotations

import sys
from pathlib import Path

from simtrain.commands.group import MISSED
from simtrain.commands.options import refuse
from simtrain.commands.output import show
from simtrain.commands.validate import Measured, Validator


class MeasuredMachine(Validator):
    """Compares a profile's predictions with measured layers and iterations that no fit used."""

    name = "machine"
    place = 50  # such a folder may hold traces too

    def takes(self, file: Path) -> bool:
        from calibrate.records.schema import FILE_NAME

        return (file / FILE_NAME).is_file()

    def validate(self, measured: Measured) -> None:
        from calibrate.records.file import read_records
        from calibrate.validation import validate_profile, write_errors
        from simtrain.hardware.load import load_profile

        options = {name: value for name, value in measured.options.items() if name != "--cluster"}
        refuse(options, "has no effect on measurements of a machine")
        folder, *others = measured.files
        refuse({str(file): file for file in others}, "is one folder too many")
        header, records = read_records(folder)
        validation = validate_profile(load_profile(measured.machine), header, records)
        for warning in validation.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        source = f"{folder.name}, measured on {header.date} on {header.device}"
        if (written := write_errors(validation, measured.machine, source)) is not None:
            print(f"wrote {written}, from which intervals follow", file=sys.stderr)
        show(measured.output, validation, validation.view)
        if not validation.ok:
            raise SystemExit(MISSED)

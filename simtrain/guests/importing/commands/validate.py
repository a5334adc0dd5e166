"""Measured runs of `simtrain validate`: tables and logs."""

from __future__ import annotations

from pathlib import Path

from simtrain.commands.output import show_answer
from simtrain.commands.validate import Measured, Validator
from simtrain.errors import InputError


class RunsValidator(Validator):
    """Simulates measured runs and compares times, memory, and what fits."""

    name = "runs"
    place = 1000  # any other file is taken for a table or a log, whose reader says what is wrong

    def takes(self, file: Path) -> bool:
        return True

    def validate(self, measured: Measured) -> None:
        from simtrain.base.output_folder import check_suffix, check_writable, write_text
        from simtrain.commands.printing import progress_bar
        from simtrain.guests.importing.runs import validate as validate_files
        from simtrain.studies.validation import error_classes, errors_text

        out, cluster = measured.out, measured.machine
        if out:
            check_suffix(out, (".yaml", ".yml"), "errors")
            check_writable(out, "the errors")
        with progress_bar() as show_progress:
            validation = validate_files(
                measured.files,
                cluster,
                measured.software,
                measured.overrides,
                on_progress=show_progress,
            )
        names = ", ".join(file.name for file in measured.files)
        if out:
            text = errors_text(error_classes(validation, names))
            write_text(out, text, "the errors")
        show_answer(measured.output, validation)
        if not validation.num_simulated:
            raise SystemExit(InputError.exit_code)

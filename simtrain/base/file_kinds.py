"""Names that other rooms still import from here."""

from simtrain.base.input_file import (
    MOST_BYTES_OF_LOG,
    PROFILE,
    SWEEP,
    FileKind,
    import_line,
    load_kind,
    text_of_kind,
)

__all__ = [
    "MOST_BYTES_OF_LOG",
    "PROFILE",
    "SWEEP",
    "FileKind",
    "import_line",
    "load_kind",
    "text_of_kind",
]

"""Names that other rooms still import from here."""

from simtrain.scenario.parallelism import MOST_LETTERS, chunks_of_layout, layout_of_chunks

__all__ = ["MOST_LETTERS", "chunks_of_layout", "layout_of_chunks"]

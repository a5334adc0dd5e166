"""Scenarios from other programs' files: Megatron-LM's arguments, Hugging Face's configs."""

from simtrain.importing.hugging_face import import_hugging_face
from simtrain.importing.megatron import import_megatron

__all__ = ["import_hugging_face", "import_megatron"]

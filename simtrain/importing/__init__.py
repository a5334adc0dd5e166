"""Import scenarios from Megatron-LM arguments, Hugging Face configs and torchtitan jobs."""

from simtrain.importing.hugging_face.mapping import import_hugging_face
from simtrain.importing.megatron.mapping import import_megatron
from simtrain.importing.torchtitan.mapping import import_torchtitan

__all__ = ["import_hugging_face", "import_megatron", "import_torchtitan"]

"""Import scenarios from Megatron-LM arguments, Hugging Face configs and torchtitan jobs."""

from simtrain.importing.hugging_face import import_hugging_face
from simtrain.importing.megatron import import_megatron
from simtrain.importing.torchtitan import import_torchtitan

__all__ = ["import_hugging_face", "import_megatron", "import_torchtitan"]

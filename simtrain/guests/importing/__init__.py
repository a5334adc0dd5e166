"""Import scenarios from the settings of other tools: Megatron-LM, Hugging Face, torchtitan."""

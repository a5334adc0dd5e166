"""Import configs of Megatron-Bridge and NeMo as the arguments of Megatron-LM that they set."""

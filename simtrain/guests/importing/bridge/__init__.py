"""Import printed configs of Megatron-Bridge."""

"""A small Megatron-LM in torch: layers, GPT, optimizer and training."""

"""Search for the best layout of a model on a given number of GPUs."""

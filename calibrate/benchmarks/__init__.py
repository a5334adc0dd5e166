"""Times kernels, collectives, layers and training on this machine."""

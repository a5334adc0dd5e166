"""A guest: traces of PyTorch's profiler (Kineto) beside the simulated iteration."""

"""Traces of PyTorch's profiler (Kineto): events, the kernels of ranks, and their kinds."""

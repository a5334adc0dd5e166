"""Measurements on disk: their kinds, their file, and nccl-tests' output."""

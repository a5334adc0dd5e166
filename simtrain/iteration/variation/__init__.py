"""Iterations whose ranks, replicas and durations differ: what varies, and how durations follow."""

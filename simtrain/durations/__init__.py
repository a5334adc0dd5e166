"""Durations of ops: work and a hardware profile in, seconds out."""

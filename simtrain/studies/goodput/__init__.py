"""Goodput of a whole training: failures, recovery, checkpoints and spares, drawn many times."""

"""Draws of an iteration whose ranks and durations vary (`simtrain run --draws`)."""

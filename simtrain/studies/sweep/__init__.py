"""Sweeps: a grid of scenarios from one file, results on disk, and SQL queries over them."""

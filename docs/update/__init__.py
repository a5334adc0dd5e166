"""Rewrites every figure that README.md and docs/ quote of simtrain: `python -m docs.update`."""

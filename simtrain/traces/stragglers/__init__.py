"""Stragglers of a traced step: run it again without a worker, a stage or a sequence."""

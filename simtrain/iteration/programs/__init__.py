"""Builds programs for the engine: the tasks of a pass, a pipeline or an iteration on streams."""

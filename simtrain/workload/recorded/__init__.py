"""Recorded torch programs (`simtrain.base.program`) as ops on the terms of the engine."""

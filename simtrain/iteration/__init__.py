"""One training iteration: its plan, its tasks with seconds, bytes over time, the result."""

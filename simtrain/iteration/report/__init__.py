"""Reports of a simulated iteration: time by cause, utilization, tables."""

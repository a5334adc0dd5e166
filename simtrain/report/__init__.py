"""What a timeline means: seconds by cause, utilization, tables."""

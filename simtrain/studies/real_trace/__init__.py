"""A trace of a real iteration beside the simulated one."""

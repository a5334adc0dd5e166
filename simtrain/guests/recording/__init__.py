"""Record one training step of a torch program that somebody else wrote, without its GPUs.

`child` runs the program: in a process of its own, on fake tensors, in a fake process group. The
rest of this package starts that process and writes what it records.
"""

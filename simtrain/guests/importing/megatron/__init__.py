"""Import the arguments of Megatron-LM: as text, or from a file, a shell script or a log."""

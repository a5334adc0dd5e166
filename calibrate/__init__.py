"""From measurements to a hardware profile: figures in, fitted numbers with their sources out."""

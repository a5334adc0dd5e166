"""Memory of each rank over time, and whether it fits."""

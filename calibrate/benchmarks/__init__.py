"""Times what trains on this machine, point by point."""

"""What every room may use: users' files, entries with sources, the mesh of ranks."""

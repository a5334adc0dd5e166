"""Hardware profiles: a cluster's numbers, each with its source."""

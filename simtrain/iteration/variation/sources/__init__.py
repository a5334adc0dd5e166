"""Sources of variation: each is an object in a file of its own."""

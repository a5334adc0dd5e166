"""What studies optimise: each objective is an object in a file of its own."""

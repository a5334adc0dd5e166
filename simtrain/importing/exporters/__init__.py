"""What `simtrain export` writes: each exporter is an object in a file of its own."""

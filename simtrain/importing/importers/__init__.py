"""What `simtrain import` reads: each importer is an object in a file of its own."""

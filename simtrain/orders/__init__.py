"""A guest: a fast order of a pipeline's passes, `simtrain schedule optimize`."""

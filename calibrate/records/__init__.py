"""Measurements on disk: the schema, the file, checks, and results of nccl-tests."""

"""Formats of traces: each is an object in a file of its own."""

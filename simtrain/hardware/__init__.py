"""The machine: its profile of sourced numbers, and where ranks sit in it."""

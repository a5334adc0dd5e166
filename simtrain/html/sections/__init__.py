"""Sections of the report on simulated iterations, one a file."""

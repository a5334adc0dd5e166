"""Sections of the report on simulated iterations, one per file."""

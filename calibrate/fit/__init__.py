"""Figures and records in, entries of a hardware profile out."""

"""Measurements published by others that no profile is fitted on, for docs/validation.md."""

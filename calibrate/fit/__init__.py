"""Fits of hardware profiles to published figures and to records."""

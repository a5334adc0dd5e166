"""Measures machines, fits hardware profiles, and validates them."""

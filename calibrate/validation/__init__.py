"""Validation of a profile on measurements that no fit used."""

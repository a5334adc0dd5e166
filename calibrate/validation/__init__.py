"""A profile beside measurements that it was not fitted on."""

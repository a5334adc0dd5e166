"""Commands of the guest: `simtrain import`, `simtrain export` and `simtrain validate`."""

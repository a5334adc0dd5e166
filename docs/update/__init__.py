"""Update the figures of simtrain in README.md and docs/: `python -m docs.update`."""

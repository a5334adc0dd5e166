"""`python -m simtrain`."""

from simtrain.cli import main

main()

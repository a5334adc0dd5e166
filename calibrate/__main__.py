"""`python -m calibrate`: `simtrain calibrate`, as torchrun starts it."""

import sys

from simtrain.commands.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "calibrate")
    main()

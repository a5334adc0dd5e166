"""Commands of the command line, one module each, and their shared options.

A command imports the rest of simtrain in its body, so `--help` and completion stay fast.
"""

"""Commands of the command line, a module each, and what they share.

A command imports what it needs in its body: help and completion load typer and these modules only.
"""

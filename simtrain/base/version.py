"""The version of simtrain."""

VERSION = "0.1.0"

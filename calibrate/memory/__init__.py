"""Memory of layers and small GPTs: measured, and beside what simtrain simulates."""

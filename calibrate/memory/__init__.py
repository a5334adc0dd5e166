"""Memory of layers and small GPTs: measured, and compared with simtrain's."""

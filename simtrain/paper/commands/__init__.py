"""Commands of the paper: `simtrain reproduce` and `simtrain reproduce explore`."""

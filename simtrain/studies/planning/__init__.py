"""Plans of training runs: best layout and cost for each cluster and number of GPUs."""

"""A guest: the published tables and figures of the paper, and our values beside them."""

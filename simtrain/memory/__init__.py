"""What each rank holds, when, and whether it fits."""

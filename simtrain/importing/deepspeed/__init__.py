"""Import configs of DeepSpeed."""

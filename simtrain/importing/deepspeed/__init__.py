"""Import DeepSpeed's JSON, over the model of a config or of a script."""

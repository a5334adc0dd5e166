"""Programs for the engine: what a chunk or a pipeline does, put on streams."""

"""What has to be done: the ops of a layer, an embedding, a head and an optimizer step."""

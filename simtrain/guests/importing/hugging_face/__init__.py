"""Import the config.json of Hugging Face's models."""

"""Import torchtitan's jobs (TOML files)."""

"""The process that runs a user's program and records a step of it. Only this process has torch."""

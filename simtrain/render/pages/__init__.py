"""Terminal pages of commands: results as tables and text."""

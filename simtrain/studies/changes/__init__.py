"""Changes of a scenario: which there are, and what each makes of its time and memory."""

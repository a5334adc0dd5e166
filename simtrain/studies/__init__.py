"""Many scenarios for one question: recompute that fits, remedies, and what each comes to."""

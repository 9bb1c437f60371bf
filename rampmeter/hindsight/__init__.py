"""Looking back at the log: every decision made again from what was logged of it, and what other settings had led to."""

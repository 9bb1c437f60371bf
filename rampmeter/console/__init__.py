"""The web console: one reading a second of what waits, who serves and why, shared by all browsers that look."""

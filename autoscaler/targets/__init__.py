"""Where consumers can run."""

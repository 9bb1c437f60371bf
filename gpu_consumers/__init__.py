"""Runs: turns lanes of requests into full engines."""

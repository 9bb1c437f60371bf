"""Sizes: turns backlog into a replica count."""

"""Decisions of a consumer: pure, without clock, log or I/O."""

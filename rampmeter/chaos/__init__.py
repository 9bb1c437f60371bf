"""Executable incidents: each makes one alert true on the local stack, and then puts back what it changed."""

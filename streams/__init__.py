"""Governs: decides which request may spend GPU time."""

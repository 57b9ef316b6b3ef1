"""Measured sensitivity: what a network's answers lose where one of its segments alone is replaced."""

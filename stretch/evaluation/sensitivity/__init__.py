"""Measured sensitivity: the loss of a network's answers where one of its segments alone is replaced."""

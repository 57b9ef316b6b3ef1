"""Measured sensitivity: the loss of a network when one of its segments is replaced."""

"""Placement of the operators of a foreign file by a runtime."""

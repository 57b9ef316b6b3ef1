"""Checks of a session's results."""

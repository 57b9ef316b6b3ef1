"""Verbs on a board, through ssh."""

"""Verbs that run on a board, through ssh."""

"""Boards: other machines on which a verb runs, reached through the user's own ``ssh``."""

"""Boards: other machines on which a verb runs, reached with the user's ``ssh``."""

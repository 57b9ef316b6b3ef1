"""Designs: where branches meet, how each is scaled, and what comes of it."""

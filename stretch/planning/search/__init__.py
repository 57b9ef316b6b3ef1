"""Search for the fastest among all valid designs of a network."""

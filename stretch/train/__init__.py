"""Train branched networks, with the original's knowledge where it helps."""

"""Whether what a session computes is right."""

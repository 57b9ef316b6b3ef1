"""Check a session's results."""

"""Run a bundle on several processors at once, without torch."""

"""Profile a machine: random networks, their measured times, and the fitted profile."""

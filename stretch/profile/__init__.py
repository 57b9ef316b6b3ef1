"""Profiling a machine: random networks, their measured times, and the profile fitted to them."""

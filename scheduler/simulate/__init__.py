"""Simulated runs, whose clock is only a number."""

"""Runs under a clock that is only a number."""

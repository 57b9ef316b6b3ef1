"""Profiling a machine: networks made to be measured, their times, and the profile that is fitted to them."""

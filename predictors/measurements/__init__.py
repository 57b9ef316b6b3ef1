"""Measured latencies of networks and kernels: the tables for fits, shipped or provided by the user."""

"""Measured latencies of networks and kernels: the tables that fits are made from, shipped or a user's own."""

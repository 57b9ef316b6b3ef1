"""Latency prediction for operator graphs on phone processors, without torch."""

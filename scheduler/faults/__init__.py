"""Faults: what becomes of a delegate that fails, as a pure function of events, and checks that find wrong results."""

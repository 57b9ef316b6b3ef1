"""Faults: the policy for delegates that fail, as a pure function of events, and checks that find wrong results."""

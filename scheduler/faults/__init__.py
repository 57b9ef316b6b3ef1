"""Faults: the policy for failing delegates, as a pure function of events, and checks that find wrong results."""

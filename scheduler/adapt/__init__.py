"""Which of several plans of a network the next inference runs, from what the last ones took: pure functions of events."""

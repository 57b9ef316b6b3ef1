"""The choice among several plans of a network for the next inference, by the times of the last inferences: pure functions of events."""

"""Cost of a design: time, work, accuracy, and its baselines."""

"""What a design costs: time, work, accuracy, and what it must beat."""

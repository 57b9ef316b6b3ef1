"""Times in turns with the controls, their intervals, and what they say."""

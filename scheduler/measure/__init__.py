"""Times measured in turns with the controls, their intervals, and the comparison."""

"""What the planner sees in an operator graph: cut points, blocks, stages, channel groups."""

"""The planner's view of an operator graph: cut points, blocks, stages, channel groups."""

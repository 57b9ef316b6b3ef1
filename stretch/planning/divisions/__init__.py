"""Exact divisions of a segment, one per file; `stretch.planning.design.branch_design` finds and describes them."""

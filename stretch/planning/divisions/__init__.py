"""Exact divisions of a segment, one per file; `stretch.planning.design.division` finds and describes them."""

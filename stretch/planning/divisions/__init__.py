"""Ways to divide a segment exactly: a file each, which `stretch.planning.design.division` finds and describes."""

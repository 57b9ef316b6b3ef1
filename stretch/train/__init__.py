"""Train branched networks, optionally with the original as teacher."""

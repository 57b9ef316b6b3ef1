"""Everything decided on the operator graph; no torch."""

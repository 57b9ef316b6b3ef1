"""Search: all legal designs of a network, and which of them is fastest."""

"""Quantise float subgraphs to int8 without torch: fold batch norms, calibrate, quantise, compare."""

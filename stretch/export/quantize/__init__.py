"""From float subgraphs to int8 ones: fold batch-norms, calibrate, quantise, compare; without torch."""

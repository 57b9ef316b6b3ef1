"""Export of a bundle to one TFLite file: one NHWC signature per subgraph and join, and the plan as metadata."""

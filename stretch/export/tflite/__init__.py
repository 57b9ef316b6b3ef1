"""One TFLite file of a bundle: a signature for each subgraph and each join, NHWC inside, its plan as metadata."""

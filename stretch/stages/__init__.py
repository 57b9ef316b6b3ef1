"""The stages from a model to a bundle: read the network, choose the design, build, calibrate, write.

`stretch.api` goes through them all; training, extraction and prediction through some.
"""

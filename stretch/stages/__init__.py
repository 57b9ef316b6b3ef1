"""The stages from a model to a bundle, each in one place: read the network, decide the design, build, calibrate, write.

`stretch.api` goes through them all; training, extraction and prediction through some.
"""

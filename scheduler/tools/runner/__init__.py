"""A C++ program that runs the branches of one bundle's TFLite file on LiteRT, without Python: its sources are in `cpp`.

`header` writes the plan that it is compiled with, `sources` the folder that is built.
"""

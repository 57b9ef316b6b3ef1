"""A C++ program that runs the branches of one bundle's TFLite file on LiteRT, without Python; its sources are in `cpp`.

`sources` writes the folder to build, including the header with the plan that is compiled in.
"""

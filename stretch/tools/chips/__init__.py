"""Compiled code for the DSPs and NPUs of specific chips, by QNN and by LiteRT's compilers."""

"""Code for the DSPs and NPUs of named chips, by QNN and by LiteRT's compilers."""

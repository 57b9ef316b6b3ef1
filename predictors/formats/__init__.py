"""Network files of other frameworks, read as operator graphs for predictions, without those frameworks."""

from predictors.formats.ncnn import read_ncnn

__all__ = ["read_ncnn"]

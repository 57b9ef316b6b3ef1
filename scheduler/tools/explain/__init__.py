"""Operator support of a runtime for any model file: the operators that a processor supports, and the reasons for the others."""

from scheduler.tools.explain.foreign import explain_file, fix_file

__all__ = ["explain_file", "fix_file"]

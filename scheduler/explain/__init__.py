"""Where a file of anybody's runs: which processor of a runtime takes each of its operators, and what stops the others."""

from scheduler.explain.foreign import explain_file
from scheduler.explain.mended import mend_file

__all__ = ["explain_file", "mend_file"]

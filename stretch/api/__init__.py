"""What the command line does, in Python: a function for each of its verbs, of the same name."""

from stretch.api.advising import advise
from stretch.api.branched import Branched
from stretch.api.exporting import export
from stretch.api.main_job import branch
from stretch.api.verbs import explain, plan, predict, search, search_pair, simulate, train

__all__ = ["Branched", "advise", "branch", "explain", "export", "plan", "predict", "search", "search_pair", "simulate", "train"]

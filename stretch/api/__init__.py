"""What the command line does, in Python: a function for each of its verbs, of the same name."""

from typing import TYPE_CHECKING

from predictors.lazy import lazy_names

if TYPE_CHECKING:
    from stretch.api.advising import advise
    from stretch.api.branched import Branched
    from stretch.api.exporting import export
    from stretch.api.main_job import branch
    from stretch.api.verbs import evaluate, explain, plan, predict, search, search_pair, simulate, train

_VERBS = ["evaluate", "explain", "plan", "predict", "search", "search_pair", "simulate", "train"]

__all__ = ["Branched", "advise", "branch", "evaluate", "explain", "export", "plan", "predict", "search", "search_pair", "simulate", "train"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "stretch.api.advising": ["advise"],
            "stretch.api.branched": ["Branched"],
            "stretch.api.exporting": ["export"],
            "stretch.api.main_job": ["branch"],
            "stretch.api.verbs": _VERBS,
        },
    )

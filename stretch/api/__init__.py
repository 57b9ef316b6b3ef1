"""What the command line does, in Python: a function for each of its verbs, of the same name."""

from typing import TYPE_CHECKING

from predictors.registry import lazy_names

if TYPE_CHECKING:
    from stretch.api.exporting import export
    from stretch.api.main_job import Branched, branch
    from stretch.api.verbs import advise, evaluate, explain, plan, predict, search, search_pair, simulate, train

_VERBS = ["advise", "evaluate", "explain", "plan", "predict", "search", "search_pair", "simulate", "train"]

__all__ = ["Branched", "advise", "branch", "evaluate", "explain", "export", "plan", "predict", "search", "search_pair", "simulate", "train"]

if not TYPE_CHECKING:
    _PLACES = {"exporting": ["export"], "main_job": ["Branched", "branch"], "verbs": _VERBS}
    __getattr__, __dir__ = lazy_names(__name__, {f"{__name__}.{module}": names for module, names in _PLACES.items()})

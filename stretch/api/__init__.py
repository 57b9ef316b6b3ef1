"""What the command line does, in Python: a function for each of its verbs, of the same name."""

from typing import TYPE_CHECKING

from predictors.registry import lazy_names

if TYPE_CHECKING:
    from stretch.api.exporting import export
    from stretch.api.main_job import Branched, branch
    from stretch.api.refining import RefineOptions, refine_bundle
    from stretch.api.verbs import (
        EvaluateOptions,
        PredictOptions,
        SearchOptions,
        SimulateOptions,
        TrainOptions,
        advise,
        evaluate,
        explain,
        plan,
        predict,
        search,
        search_pair,
        simulate,
        train,
    )

__all__ = [
    "Branched",
    "EvaluateOptions",
    "PredictOptions",
    "RefineOptions",
    "SearchOptions",
    "SimulateOptions",
    "TrainOptions",
    "advise",
    "branch",
    "evaluate",
    "explain",
    "export",
    "plan",
    "predict",
    "refine_bundle",
    "search",
    "search_pair",
    "simulate",
    "train",
]

if not TYPE_CHECKING:
    _PLACES = {"exporting": ["export"], "main_job": ["Branched", "branch"], "refining": ["RefineOptions", "refine_bundle"]}
    _PLACES["verbs"] = [name for name in __all__ if not any(name in names for names in _PLACES.values())]
    __getattr__, __dir__ = lazy_names(__name__, {f"{__name__}.{module}": names for module, names in _PLACES.items()})

"""Python functions for the verbs of the command line, with the same names."""

from typing import TYPE_CHECKING

from predictors.registry import lazy_names

if TYPE_CHECKING:
    from stretch.api.exporting import export
    from stretch.api.main_job import BranchOptions, branch
    from stretch.api.refining import RefineOptions, refine_bundle
    from stretch.api.searching import SearchOptions, search, search_pair
    from stretch.api.verbs import (
        EvaluateOptions,
        PredictOptions,
        SimulateOptions,
        TrainOptions,
        advise,
        evaluate,
        explain,
        plan,
        predict,
        simulate,
        train,
    )
    from stretch.stages.branched import Branched

__all__ = [
    "BranchOptions",
    "Branched",
    "advise",
    "branch",
    "evaluate",
    "explain",
    "export",
    "plan",
    "predict",
    "search",
    "search_pair",
    "simulate",
    "train",
]
__all__ += ["EvaluateOptions", "PredictOptions", "RefineOptions", "SearchOptions", "SimulateOptions", "TrainOptions", "refine_bundle"]

if not TYPE_CHECKING:
    _PLACES = {
        "exporting": ["export"],
        "main_job": ["BranchOptions", "branch"],
        "refining": ["RefineOptions", "refine_bundle"],
        "searching": ["SearchOptions", "search", "search_pair"],
    }
    _PLACES["verbs"] = sorted({*__all__} - {"Branched"} - {name for names in _PLACES.values() for name in names})
    _MODULES = {f"{__name__}.{module}": names for module, names in _PLACES.items()}
    __getattr__, __dir__ = lazy_names(__name__, _MODULES | {"stretch.stages.branched": ["Branched"]})

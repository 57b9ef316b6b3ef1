"""Turn a CNN into branches that run at the same time on several processors."""

from typing import TYPE_CHECKING

from predictors.registry import lazy_names

if TYPE_CHECKING:
    from predictors.devices import DeviceProfile, list_devices, load_device
    from predictors.errors import InfeasibleError, MissingBackendError, StretchError, UnknownNameError, UsageError
    from stretch.api import Branched, advise, branch, evaluate, explain, plan, predict, search, simulate
    from stretch.network.models import model_names
    from stretch.planning.config import PlanConfig

__all__ = [
    "Branched",
    "DeviceProfile",
    "InfeasibleError",
    "MissingBackendError",
    "PlanConfig",
    "StretchError",
    "UnknownNameError",
    "UsageError",
    "advise",
    "branch",
    "evaluate",
    "explain",
    "list_devices",
    "load_device",
    "model_names",
    "plan",
    "predict",
    "search",
    "simulate",
]

__version__ = "0.1.0"

if not TYPE_CHECKING:
    # type checkers would take these for any name at all
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "predictors.devices": ["DeviceProfile", "list_devices", "load_device"],
            "predictors.errors": ["InfeasibleError", "MissingBackendError", "StretchError", "UnknownNameError", "UsageError"],
            "stretch.api": ["Branched", "advise", "branch", "evaluate", "explain", "plan", "predict", "search", "simulate"],
            "stretch.network.models": ["model_names"],
            "stretch.planning.config": ["PlanConfig"],
        },
    )

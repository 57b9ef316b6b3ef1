"""Run a bundle on several processors at once, without torch."""

import os
from typing import TYPE_CHECKING

from predictors.registry import lazy_names

if TYPE_CHECKING:
    from scheduler.bundle.load import Bundle, load_bundle
    from scheduler.faults.policy import FaultPolicy
    from scheduler.runtime.adaptive import AdaptiveSession
    from scheduler.runtime.scheduler import Scheduler
    from scheduler.runtime.session import Session
    from scheduler.simulate.admission import Demand

# ONNX Runtime sends usage data to Microsoft unless this is set before its import; a value that the user has set stays
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "AdaptiveSession",
    "Bundle",
    "Demand",
    "FaultPolicy",
    "Scheduler",
    "Session",
    "load_bundle",
]

if not TYPE_CHECKING:
    # type checkers would otherwise accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "scheduler.bundle.load": ["Bundle", "load_bundle"],
            "scheduler.faults.policy": ["FaultPolicy"],
            "scheduler.runtime.adaptive": ["AdaptiveSession"],
            "scheduler.runtime.scheduler": ["Scheduler"],
            "scheduler.runtime.session": ["Session"],
            "scheduler.simulate.admission": ["Demand"],
        },
    )

"""The main job in one call: load, capture, plan, transform, export; and before it, whether it pays."""

from stretch.api.advising import advise
from stretch.api.branched import Branched
from stretch.api.main_job import branch

__all__ = ["Branched", "advise", "branch"]

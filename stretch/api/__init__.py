"""The main job in one call: load, capture, plan, transform, export."""

from stretch.api.branched import Branched
from stretch.api.main_job import branch

__all__ = ["Branched", "branch"]

"""Tuning: what was measured to be quickest on a device, and where that is kept."""

from scheduler.tuning.cache import Entry, TuningCache, tuning_folder

__all__ = ["Entry", "TuningCache", "tuning_folder"]

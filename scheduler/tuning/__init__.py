"""Tuning: what was measured to be quickest on a device, and where that is kept."""

from scheduler.tuning.cache import Entry, TuningCache, tuning_folder
from scheduler.tuning.shipped import shipped_entries

__all__ = ["Entry", "TuningCache", "shipped_entries", "tuning_folder"]

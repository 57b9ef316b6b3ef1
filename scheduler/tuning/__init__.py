"""Tuning: what was measured to be quickest on a device, and where that is kept."""

from scheduler.tuning.cache import Entry, TuningCache, shipped_entries, tuning_folder

__all__ = ["Entry", "TuningCache", "shipped_entries", "tuning_folder"]

"""Calibration without training: fit statistics, layers and joins to the original's activations on unlabelled images."""

from stretch.transform.calibrate.run import MIN_IMAGES, SegmentError, calibrate, undivided_design
from stretch.transform.calibrate.segment import ChoiceSettings
from stretch.transform.calibrate.statistics import renew_statistics

__all__ = ["MIN_IMAGES", "ChoiceSettings", "SegmentError", "calibrate", "renew_statistics", "undivided_design"]

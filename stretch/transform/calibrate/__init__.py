"""Calibration without training: statistics, layers and joins are fitted to the original's activations on unlabelled images."""

from stretch.transform.calibrate.run import MIN_IMAGES, SegmentError, calibrate, whole_design
from stretch.transform.calibrate.segment import Choices
from stretch.transform.calibrate.statistics import renew_statistics

__all__ = ["MIN_IMAGES", "Choices", "SegmentError", "calibrate", "renew_statistics", "whole_design"]

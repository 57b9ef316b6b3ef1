"""Kernel models: the time of one kernel on one processor, from specifications or from a fit."""

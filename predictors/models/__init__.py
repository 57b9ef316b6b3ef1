"""Kernel models: how long one kernel takes on one processor, from specifications or from a fit."""

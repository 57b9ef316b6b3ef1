"""Placement of a device's processors on this machine."""

"""Designs: meeting points, scaled or divided branches, and their application to a network."""

"""Accuracy of a bundle on images, and its agreement with the original."""

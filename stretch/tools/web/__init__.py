"""Bundles in a browser, and a profile of its processors."""

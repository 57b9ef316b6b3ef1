"""Bundles in a browser, and a profile of the browser's processors."""

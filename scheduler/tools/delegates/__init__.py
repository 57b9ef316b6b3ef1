"""Delegates of single vendors, which the core finds by this folder."""

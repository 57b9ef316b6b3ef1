"""Delegates of single vendors, which the core finds in this folder."""

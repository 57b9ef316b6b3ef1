"""The bundle: its manifest, its files, and the checks before anything runs."""

"""The bundle: its manifest, what is checked before anything runs, and the files it names."""

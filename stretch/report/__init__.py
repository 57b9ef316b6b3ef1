"""Reports of results for terminals and HTML pages."""

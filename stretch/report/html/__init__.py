"""Reports as single HTML files that need no network, no script and no colour."""

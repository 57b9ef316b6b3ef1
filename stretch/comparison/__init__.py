"""Results side by side: bundles, plans, searches and runs as rows of one table."""

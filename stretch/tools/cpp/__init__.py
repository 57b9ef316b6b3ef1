"""A C++ program that runs a bundle's branches."""

"""Write a bundle that the scheduler runs."""

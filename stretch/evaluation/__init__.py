"""What a bundle is worth: its classes against labels and against the original, on images."""

"""TFLite files, written without a converter."""

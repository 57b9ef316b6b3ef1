"""The `reference` delegate: numpy, slow and plain; its results define every operator."""

from scheduler.delegates.reference.interpreter import ReferenceDelegate

__all__ = ["ReferenceDelegate"]

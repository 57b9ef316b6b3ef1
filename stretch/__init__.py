"""Turn a CNN into branches that run at the same time on several processors."""

__version__ = "0.1.0"

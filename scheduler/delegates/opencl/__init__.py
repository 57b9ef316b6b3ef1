"""The `opencl` delegate; pyopencl is imported only when a subgraph is compiled."""

from scheduler.delegates.opencl.delegate import OpenCLDelegate

__all__ = ["OpenCLDelegate"]

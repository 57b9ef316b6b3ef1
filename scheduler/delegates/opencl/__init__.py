"""The `opencl` delegate; pyopencl is imported when a subgraph is compiled, not before."""

from scheduler.delegates.opencl.delegate import OpenCLDelegate

__all__ = ["OpenCLDelegate"]

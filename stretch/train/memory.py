"""Memory usage of a run."""

import torch


def memory_mib(device: torch.device) -> float:
    """Peak memory of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

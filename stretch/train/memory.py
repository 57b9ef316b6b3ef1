"""How much memory a run takes."""

import torch


def memory_mib(device: torch.device) -> float:
    """Most memory taken so far: of the GPU's, or of this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

"""What jobs on GPU machines write beside their numbers, and how records state it."""

import os
import platform
from collections.abc import Mapping
from typing import Any

from experiments.records import Machine


def facts() -> dict[str, Any]:
    """GPU, cores, memory, load and versions of the machine this runs on."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu_load": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def machine(row: Mapping[str, Any]) -> Machine:
    """The machine of a record, from the facts beside a result."""
    return Machine(row["gpu"], row["cores"], row["memory_gib"], f"{platform.system()} {platform.machine()}")

"""Facts that jobs on GPU machines write with their numbers, and their statement in records."""

import os
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from experiments.records import Machine, now
from stretch.profile.environment import processor_name

if TYPE_CHECKING:
    from stretch.train.images import ImageSet, Normalise
    from stretch.train.loop import Run


class Origin(TypedDict):
    """Arguments of `write_record` for a run on another machine."""

    machine: Machine
    versions: dict[str, str]
    load: float
    date: str | None


def facts() -> dict[str, Any]:
    """GPU, or the processor where there is none, cores, memory, system, load, time and versions of the machine this runs on."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else processor_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "date": now(),
        "cpu_load": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def origin(runs: Sequence[Mapping[str, Any]]) -> Origin:
    """Where and when runs were made, from the facts in their results; missing facts stay unknown.

    Args:
        runs: One or more results; the first one's machine represents all, the latest date and the highest load.
    """
    first = runs[0]
    return {
        "machine": Machine(first["gpu"], first.get("cores"), first.get("memory_gib"), first.get("system")),
        "versions": dict(first["versions"]),
        "load": max(run["cpu_load"] for run in runs),
        "date": max((run["date"] for run in runs if "date" in run), default=None),
    }


def fp32_accuracy(model: Any, images: "ImageSet", normalise: "Normalise") -> float:
    """Top-1 of a network on images, in fp32."""
    from stretch.train.loop import evaluate
    from stretch.train.recipe import TrainConfig

    return evaluate(model, images, normalise, TrainConfig(amp="none", channels_last=False))


def train_side_by_side(runs: "Sequence[Run]", evaluate_every: int = 10) -> None:
    """Train several runs on one GPU, a step of each in turn on streams of their own: a small network leaves most of a large GPU idle."""
    import torch

    waiting = [
        (run.steps(evaluate_every), torch.cuda.Stream(run.world.device) if run.world.device.type == "cuda" else None) for run in runs
    ]
    for _, stream in waiting:
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
    ended = object()
    while waiting:
        for work in list(waiting):
            with torch.cuda.stream(work[1]):
                if next(work[0], ended) is ended:
                    waiting.remove(work)

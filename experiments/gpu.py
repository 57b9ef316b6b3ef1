"""Facts that jobs on GPU machines write with their numbers, and their statement in records."""

import json
import math
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from experiments.records import Machine, now
from stretch.profile.environment import processor_name

if TYPE_CHECKING:
    import torch

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


def read_runs(folder: Path, pattern: str = "*.json") -> list[dict[str, Any]]:
    """Return the results of runs in the files of a folder."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob(pattern))]


def origin(runs: Sequence[Mapping[str, Any]]) -> Origin:
    """Return where and when runs were made, from the facts in their results; missing facts stay unknown.

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


def side_by_side(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], count: int, seconds: float = math.inf) -> Iterator[Any]:
    """Yield the results of jobs as they come, each in a process of its own: small networks leave most of a GPU idle.

    Args:
        work: Function of a module.
        jobs: Its arguments. A job that fails is reported and left out.
        count: Jobs at a time.
        seconds: After these, jobs that are not done are stopped.
    """
    end = time.monotonic() + seconds
    with multiprocessing.get_context("spawn").Pool(count, maxtasksperchild=1) as pool:
        results = pool.imap_unordered(partial(_call, work), jobs)
        for done in range(len(jobs)):
            try:
                yield results.next(None if seconds == math.inf else max(0.0, end - time.monotonic()))
            except multiprocessing.TimeoutError:
                sys.stderr.write(f"{len(jobs) - done} jobs were not done in time\n")
                return
            except Exception as error:  # one that fails must not take the others with it
                sys.stderr.write(f"a job failed: {type(error).__name__}: {error}\n")


def _call(work: Callable[..., Any], job: tuple[Any, ...]) -> Any:
    return work(*job)


def device_and_images(data: Path) -> "tuple[torch.device, tuple[ImageSet, ImageSet]]":
    """Return the GPU, or the CPU where there is none, and the prepared images on it, for training and for testing."""
    import torch

    from stretch.train.images import load_arrays

    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = (part.to(device) for part in load_arrays(data, 10))
    return device, (train_set, test_set)


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

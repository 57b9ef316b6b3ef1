"""Facts that jobs on GPU machines write with their numbers, and their form in records."""

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
    """Return GPU (or processor if there is none), cores, memory, system, load, time and versions of this machine."""
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
        runs: One or more results; the machine of the first one represents all, with the latest date and the highest load.
    """
    first = runs[0]
    return {
        "machine": Machine(first["gpu"], first.get("cores"), first.get("memory_gib"), first.get("system")),
        "versions": dict(first["versions"]),
        "load": max(run["cpu_load"] for run in runs),
        "date": max((run["date"] for run in runs if "date" in run), default=None),
    }


def side_by_side(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], count: int, seconds: float = math.inf) -> Iterator[Any]:
    """Yield the results of jobs as they finish, each in a separate process, because small networks leave most of a GPU idle.

    Args:
        work: Function at the top level of a module.
        jobs: Arguments of each job. A job that fails is reported and left out.
        count: Number of jobs at a time.
        seconds: Time after which unfinished jobs are stopped.
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
            except Exception as error:  # one failed job must not stop the others
                sys.stderr.write(f"a job failed: {type(error).__name__}: {error}\n")


def _call(work: Callable[..., Any], job: tuple[Any, ...]) -> Any:
    return work(*job)


def device_and_images(data: Path) -> "tuple[torch.device, tuple[ImageSet, ImageSet]]":
    """Return the GPU, or the CPU without one, and the prepared training and test images on it."""
    import torch

    from stretch.train.images import load_arrays

    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = (part.to(device) for part in load_arrays(data, 10))
    return device, (train_set, test_set)


def fp32_accuracy(model: Any, images: "ImageSet", normalise: "Normalise") -> float:
    """Return the top-1 accuracy of a network on images, in fp32."""
    from stretch.train.loop import evaluate
    from stretch.train.recipe import TrainConfig

    return evaluate(model, images, normalise, TrainConfig(amp="none", channels_last=False))


def train_side_by_side(runs: "Sequence[Run]", evaluate_every: int = 10) -> None:
    """Train several runs on one GPU, one step of each in turn on separate streams, because a small network leaves most of a GPU idle."""
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

"""Work-group sizes of launches: tuned by FAST or EXHAUSTIVE, kept, and applied when a subgraph is compiled again."""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from predictors.errors import StretchError
from scheduler.delegates.opencl.compiled import OpenCLCompiled
from scheduler.delegates.opencl.device import OpenDevice
from scheduler.delegates.opencl.launch import Launch, Size
from scheduler.delegates.opencl.programs import source_hash
from scheduler.progress import Progress, silent
from scheduler.tuning.cache import Entry, TuningCache
from scheduler.tuning.search import REPEATS, quickest
from scheduler.tuning.workgroups import Limits, Size3, exhaustive, fast, fast_convolution

Mode = Literal["fast", "exhaustive"]

#: Kernels to which FAST's rule for convolutions applies.
CONVOLUTIONS = ("conv", "depthwise", "stem")


@dataclass(frozen=True)
class TunedGroup:
    """What was found for one launch."""

    launch: Launch  # The launch as it was.
    before_ms: float  # Its time with the work-group of its template.
    after_ms: float  # Its time with the chosen one.
    local: Size | None  # The chosen size; None for the template's own.
    tried: int  # Measurements made.


def group_key(launch: Launch) -> str:
    """What a work-group's time depends on beside device and kernel source."""
    macros = " ".join(f"{key}={value}" for key, value in launch.defines)
    return f"{launch.shape} | {macros} | {'x'.join(map(str, launch.grid))}"[:500]


def apply_groups(launches: Iterable[Launch], cache: TuningCache) -> list[Launch]:
    """Launches with the work-groups that tuning found for them."""
    known = {(e.kernel, e.source, e.shape): e.parameters for e in cache.entries("workgroup")}
    changed = []
    for launch in launches:
        size = known.get((launch.kernel, source_hash(launch.kernel), group_key(launch)))
        if size is not None:
            local = tuple(size[axis] for axis in ("X", "Y", "Z")[: len(launch.grid)] if axis in size)
            launch = replace(launch, local=local or None)
        changed.append(launch)
    return changed


class LaunchTimer:
    """Runs single launches of a subgraph on zeros and reads the device's clock.

    Args:
        device: Where they run.
        compiled: The subgraph.
    """

    def __init__(self, device: OpenDevice, compiled: OpenCLCompiled) -> None:
        import pyopencl as cl

        self._cl = cl
        self._device = device
        ends = {**compiled.inputs, **compiled.outputs}
        zeros = {name: np.zeros(shape, np.float32) for name, shape in ends.items()}
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self._buffers = {name: cl.Buffer(device.context, flags, hostbuf=array) for name, array in zeros.items()}
        # What makes the commands keeps weights and intermediates.
        self._owner = compiled
        self._commands = compiled.commands(self._buffers)
        self._warm: set[tuple[int, Size | None]] = set()

    def most_items(self, index: int) -> int:
        """Most work-items of a work-group of a launch's kernel (K in paper 002)."""
        device = self._device.queue.device
        return int(self._commands[index].kernel.get_work_group_info(self._cl.kernel_work_group_info.WORK_GROUP_SIZE, device))

    def ms(self, index: int, local: Size | None) -> float:
        """Time of one run of a launch with a work-group size, the driver's choice if None.

        The first run of a size is not the one that counts: PoCL compiles the kernel for it.
        """
        command = self._commands[index]
        grid = replace(command.launch, local=local).global_size
        try:
            if (index, local) not in self._warm:
                self._cl.enqueue_nd_range_kernel(self._device.queue, command.kernel, grid, local).wait()
                self._warm.add((index, local))
            event = self._cl.enqueue_nd_range_kernel(self._device.queue, command.kernel, grid, local)
            event.wait()
            nanoseconds: int = event.profile.end - event.profile.start
        except self._cl.Error as error:
            raise StretchError(f"`{command.launch.kernel}` does not run with the work-group {local}: {error}") from error
        return nanoseconds / 1e6


class GroupTuner:
    """Times work-group sizes of every launch of a subgraph, each launch by itself, on the device's clock.

    Args:
        device: Where to measure.
        compiled: The subgraph with the work-groups of its templates.
        mode: Which candidates: one by formula, or every one.
    """

    def __init__(self, device: OpenDevice, compiled: OpenCLCompiled, mode: Mode) -> None:
        self._device = device
        self._compiled = compiled
        self._mode = mode

    def tune(self, budget_s: float, progress: Progress = silent) -> Iterator[TunedGroup]:
        """Choose a work-group for each launch; launches that are alike share one, and so does what the budget leaves out."""
        end = time.monotonic() + budget_s
        done: set[tuple[str, str]] = set()
        timer = LaunchTimer(self._device, self._compiled)
        launches = self._compiled.launches
        for i, (launch, after) in enumerate(itertools.zip_longest(launches, launches[1:])):
            key = (launch.kernel, group_key(launch))
            if key not in done and time.monotonic() < end:
                done.add(key)
                yield self._tune(timer, i, launch, end)
            progress(after.kernel if after else "")

    def _tune(self, timer: "LaunchTimer", index: int, launch: Launch, end: float) -> TunedGroup:
        limits = Limits(timer.most_items(index), _three(self._device.traits.max_sizes))
        candidates = [size for size in self._candidates(launch, limits) if size != launch.local]

        def measure(size: Size | None) -> float | None:
            try:
                return timer.ms(index, launch.local if size is None else size)
            except StretchError:
                return None  # the driver refuses the size

        chosen = quickest(candidates, measure, REPEATS, spent=lambda: time.monotonic() > end)
        return TunedGroup(launch, chosen.default_ms, chosen.best_ms, chosen.best, chosen.measured)

    def _candidates(self, launch: Launch, limits: Limits) -> Sequence[Size]:
        rank = len(launch.grid)
        if self._mode == "exhaustive":
            return list(dict.fromkeys(size[:rank] for size in exhaustive(launch.grid, limits)))
        rule = fast_convolution if launch.kernel in CONVOLUTIONS else fast
        return [rule(launch.grid, limits)[:rank]]


def group_entries(groups: Iterable[TunedGroup]) -> list[Entry]:
    """What was found, as the cache keeps it; where the template's own size is best, nothing is kept."""
    return [
        Entry(
            "workgroup",
            group.launch.kernel,
            source_hash(group.launch.kernel),
            group_key(group.launch),
            dict(zip("XYZ", group.local, strict=False)),
            group.after_ms,
            group.before_ms,
        )
        for group in groups
        if group.local is not None
    ]


def _three(sizes: tuple[int, ...]) -> Size3:
    padded = (*sizes, 1, 1, 1)
    return padded[0], padded[1], padded[2]

"""Finds the fastest schedule of each convolution by measuring, and keeps it for later compilations."""

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from operator import itemgetter
from typing import Literal

import numpy as np

from predictors.errors import StretchError
from scheduler.delegates.opencl.compiled import LaunchTime, OpenCLCompiled
from scheduler.delegates.opencl.device import OpenDevice, source_hash
from scheduler.delegates.opencl.graph import FusedActivation, KernelGraph, KernelNode
from scheduler.delegates.opencl.launch import Launch, Size
from scheduler.delegates.opencl.schedule import Options, Parameters, Schedules
from scheduler.delegates.opencl.templates import lower
from scheduler.progress import Progress, silent
from scheduler.tuning import BETTER, Entry, TuningCache, quickest, race, shipped_entries

#: Kernel file of a problem, where it has another name.
SOURCES = {"product": "conv", "winograd": "winograd_in"}
#: A candidate whose best time in its first two runs exceeds this multiple of the best candidate's is not run again.
DROP_RATIO = 1.3


@dataclass(frozen=True)
class TunedSchedule:
    """The tuned schedule of one kernel."""

    kernel: str  # Name of the problem's kernel.
    shape: str  # Its shape in words.
    before_ms: float  # Time with the untuned schedule.
    after_ms: float  # Time with the chosen schedule.
    choice: Parameters  # The parameters chosen.
    node: str = ""  # Node at which it was found; other nodes of the same shape use it, too.
    default: Parameters = field(default_factory=dict)  # Parameters of the untuned schedule.


def open_cache(device: OpenDevice, half: bool) -> TuningCache:
    """Return the cache of tuned schedules for a device and storage type."""
    return TuningCache(f"{device.name} {device_kind(device, half)}", device.driver)


def cached_schedules(cache: TuningCache) -> dict[tuple[str, str], Parameters]:
    """Return the user's schedules for kernels whose source has not changed since tuning."""
    return _current(cache.entries("schedule"))


def shipped_schedules(device: OpenDevice, half: bool) -> dict[tuple[str, str], Parameters]:
    """Return the package's schedules for this kind of device, for kernels whose source has not changed since tuning."""
    return _current(shipped_entries(device_kind(device, half)))


def device_kind(device: OpenDevice, half: bool) -> str:
    """Return the kind of device and storage type, by which schedules are shipped."""
    return f"{device.traits.id}{' half' if half else ''}"


def _current(entries: Iterable[Entry]) -> dict[tuple[str, str], Parameters]:
    return {(e.kernel, e.shape): e.parameters for e in entries if e.kind == "schedule" and e.source == kernel_hash(e.kernel)}


def kernel_hash(kernel: str) -> str:
    """Return the hash of the kernel source that the schedules of a problem of this name depend on."""
    return source_hash(SOURCES.get(kernel, kernel))


class ScheduleTuner:
    """Measures the candidates of each convolution of a graph alone, on the device's clock.

    Candidates take turns, the shortest of at least three runs counts, and a
    candidate that is much slower in its first two runs is dropped.

    Args:
        top: Number of candidates to measure, best of the ranking first.
        rounds: Runs of each candidate; at least 3.
    """

    def __init__(self, device: OpenDevice, *, half: bool = False, options: Options | None = None, top: int = 8, rounds: int = 4) -> None:
        self._device = device
        self._half = half
        self._options = options or Options()
        self._top = top
        self._rounds = max(3, rounds)

    def tune(
        self,
        graph: KernelGraph,
        cached: Mapping[tuple[str, str], Parameters],
        budget_s: float,
        progress: Progress = silent,
        start: Mapping[tuple[str, str], Parameters] | None = None,
    ) -> Iterator[TunedSchedule]:
        """Tune every convolution of a graph until the budget is spent; yield each result at once.

        Args:
            graph: Simplified and fused graph.
            cached: Schedules found before, which are not measured again.
            budget_s: Seconds after which no further kernel is begun.
            start: Untuned schedules, where they are not the first of the ranking.
        """
        end = time.monotonic() + budget_s
        schedules = {**(start or {}), **cached}
        done = set(cached)
        convolutions = [node for node in graph.nodes if node.op in ("Conv", "Gemm")]
        for node, next_node in itertools.zip_longest(convolutions, convolutions[1:]):
            if time.monotonic() < end:
                for tuned in self._tune_node(single_node_graph(graph, node), schedules, done, end):
                    key = tuned.kernel, tuned.shape
                    schedules[key] = tuned.choice
                    done.add(key)
                    yield replace(tuned, node=node.name)
            progress(next_node.name if next_node else "")

    def _tune_node(
        self, graph: KernelGraph, current: Mapping[tuple[str, str], Parameters], done: AbstractSet[tuple[str, str]], end: float
    ) -> Iterator[TunedSchedule]:
        """Yield the results for one convolution until the time `end`; the caller adds them to `current` and `done` meanwhile."""
        options = self._options
        for variant in (replace(options, winograd="off"), replace(options, winograd="on")):
            schedules = Schedules(self._device.traits, current)
            self._compile(graph, variant, schedules)
            for problem, candidates in schedules.problems:
                if time.monotonic() > end:
                    return
                if (problem.kernel, problem.shape) not in done:
                    yield self._choose(graph, variant, current, (problem.kernel, problem.shape), candidates[: self._top])
        if options.winograd == "auto" and graph.nodes[0].op == "Conv":
            yield from self._algorithm(graph, current, done)

    def _algorithm(
        self, graph: KernelGraph, current: Mapping[tuple[str, str], Parameters], done: AbstractSet[tuple[str, str]]
    ) -> Iterator[TunedSchedule]:
        """Yield whether Winograd's or the direct algorithm is faster, each with its best schedule."""
        compiled = {
            use: self._compile(graph, replace(self._options, winograd=use), Schedules(self._device.traits, current))
            for use in ("off", "on")
        }
        launches = [launch for launch in compiled["on"].launches if launch.kernel == "winograd_in"]
        if not launches:
            return
        kernel, shape = tuned_key(launches[0])
        if (kernel, shape) in done:
            return
        times = {use: min(_conv_ms(trial) for _ in range(self._rounds)) for use, trial in compiled.items()}
        automatic = self._compile(graph, self._options, Schedules(self._device.traits, current))
        use_untuned = int(any(launch.kernel == "winograd_in" for launch in automatic.launches))
        before = times["on" if use_untuned else "off"]
        use = int(times["on"] < BETTER * times["off"])
        yield TunedSchedule(kernel, shape, before, times["on" if use else "off"], {"USE": use}, default={"USE": use_untuned})

    def _choose(
        self,
        graph: KernelGraph,
        options: Options,
        current: Mapping[tuple[str, str], Parameters],
        key: tuple[str, str],
        candidates: list[Parameters],
    ) -> TunedSchedule:
        times = self.measure(graph, options, current, key, candidates)
        (default, before), *_ = times
        choice, after = min(times, key=lambda trial: trial[1])
        if after > BETTER * before:
            choice, after = default, before
        return TunedSchedule(*key, before_ms=before, after_ms=after, choice=dict(choice), default=dict(default))

    def measure(
        self,
        graph: KernelGraph,
        options: Options,
        current: Mapping[tuple[str, str], Parameters],
        key: tuple[str, str],
        candidates: Sequence[Parameters],
    ) -> list[tuple[Parameters, float]]:
        """Return each candidate that the driver compiles with its shortest time in ms, measured in turns.

        Args:
            graph: One convolution, from `single_node_graph`.
            key: Kernel and shape of the candidates.
            candidates: Parameters, the present ones first; these are measured in every round.
        """
        trials: list[tuple[Parameters, OpenCLCompiled]] = []
        for candidate in candidates:
            try:
                trials.append((candidate, self._compile(graph, options, Schedules(self._device.traits, {**current, key: candidate}))))
            except StretchError:
                # The driver does not compile this candidate, or the device lacks memory or registers for it.
                continue
        if not trials:
            raise StretchError(f"no schedule of the kernel `{key[0]}` for {key[1]} can be compiled on `{self._device.name}`")
        times = race([partial(_conv_ms, compiled) for _, compiled in trials], self._rounds, DROP_RATIO, trial_rounds=2)
        return [(candidate, times[i]) for i, (candidate, _) in enumerate(trials)]

    def _compile(self, graph: KernelGraph, options: Options, schedules: Schedules) -> OpenCLCompiled:
        copy = KernelGraph(list(graph.nodes), dict(graph.constants), dict(graph.shapes), graph.inputs, graph.outputs)
        launches = lower(copy, self._device.traits.blocking(self._half), self._device.traits, options, schedules)
        return OpenCLCompiled(self._device, graph, launches, half=self._half)


def keep_faster(tuned_nodes: list[TunedSchedule], before: OpenCLCompiled, after: OpenCLCompiled) -> list[TunedSchedule]:
    """Return the schedules, with the untuned choice for nodes that are not faster inside the subgraph, where kernels share the caches."""
    nodes = faster_nodes(before, after)
    return [tuned if tuned.node in nodes else replace(tuned, choice=tuned.default, after_ms=tuned.before_ms) for tuned in tuned_nodes]


def faster_nodes(before: OpenCLCompiled, after: OpenCLCompiled) -> set[str]:
    """Return the nodes of a subgraph whose launches take less time in the second form; both are profiled in turns."""
    old, new = node_times(before, after, 3)
    return {node for node, ms in new.items() if ms <= BETTER * old.get(node, 0.0)}


def node_times(before: OpenCLCompiled, after: OpenCLCompiled, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the shortest time in ms of each node's launches in two forms of a subgraph, profiled in turns."""
    times: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for total, launches in zip(times, interleaved_profiles((before, after), rounds), strict=True):
        for launch, ms in launches:
            total[launch.node] = total.get(launch.node, 0.0) + ms
    return times


def interleaved_profiles(variants: Sequence[OpenCLCompiled], rounds: int) -> list[list[LaunchTime]]:
    """Return the shortest time of each launch of several forms of a subgraph, profiled in turns."""
    profiles = [[compiled.profile(2) for compiled in variants] for _ in range(rounds)]
    return [[min(times, key=itemgetter(1)) for times in zip(*runs, strict=True)] for runs in zip(*profiles, strict=True)]


def tuned_key(launch: Launch) -> tuple[str, str]:
    """Return kernel and shape under which a launch's schedule is kept; for a Winograd input transform, the choice of that algorithm."""
    if launch.kernel == "winograd_in":
        return "winograd", launch.shape.removesuffix(" input")
    batched = dict(launch.defines).get("BATCHED") == "1"
    return ("product" if batched else launch.kernel), launch.shape


def _conv_ms(compiled: OpenCLCompiled) -> float:
    """Return the time of the convolution in a graph of `single_node_graph` in ms, without conversions and the activation after it."""
    return sum(ms for launch, ms in compiled.profile(1) if launch.kernel not in ("move", "elementwise"))


def single_node_graph(graph: KernelGraph, node: KernelNode) -> KernelGraph:
    """Return one node as a graph; an activation after it keeps its result on the device, as inside a network."""
    inputs = tuple(dict.fromkeys(name for name in node.inputs if name and name not in graph.constants))
    end = f"{node.output}:end"
    after = KernelNode(end, "Unary", (node.output,), end, {"activation": FusedActivation("relu")})
    shapes = {name: graph.shapes[name] for name in (*inputs, node.output)} | {end: graph.shapes[node.output]}
    constants = {name: graph.constants[name] for name in node.inputs if name in graph.constants}
    return KernelGraph([node, after], constants, shapes | {name: array.shape for name, array in constants.items()}, inputs, (end,))


def schedule_entries(tuned_nodes: list[TunedSchedule]) -> list[Entry]:
    """Return the tuned schedules as entries of the cache."""
    return [
        Entry(
            "schedule",
            tuned.kernel,
            kernel_hash(tuned.kernel),
            tuned.shape,
            dict(tuned.choice),
            tuned.after_ms,
            tuned.before_ms,
        )
        for tuned in tuned_nodes
    ]


# Legal work-group sizes of a kernel: the candidates FAST and EXHAUSTIVE of paper 002.

#: Sizes in three dimensions; a grid with fewer ends with ones.
Size3 = tuple[int, int, int]

#: Minimum number of work-items of a candidate of EXHAUSTIVE.
MIN_ITEMS = 32


@dataclass(frozen=True)
class Limits:
    """Limits of a device and a kernel."""

    items: int  # Maximum number of work-items per work-group for this kernel (K in paper 002).
    sizes: Size3  # Maximum number of work-items in each dimension.

    def allow(self, size: Size3) -> bool:
        """Return whether a work-group may have this size."""
        return min(size) >= 1 and prod(size) <= self.items and all(n <= most for n, most in zip(size, self.sizes, strict=True))


def pad_to_3d(sizes: tuple[int, ...]) -> Size3:
    """Return one to three sizes as three, with ones appended."""
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise ValueError(f"{sizes} is no grid of one to three dimensions")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def greatest_divisor(n: int, most: int) -> int:
    """Return the largest divisor of `n` up to `most` (`gbd` of paper 002)."""
    return next(d for d in range(min(n, most), 0, -1) if n % d == 0)


def greatest_even_divisor(n: int, most: int = 8) -> int:
    """Return the first of 8, 4, 2 up to `most` that divides `n`, else its largest divisor up to `most` (`gbdp`)."""
    return next((d for d in (8, 4, 2) if d <= most and n % d == 0), 0) or greatest_divisor(n, most)


def fast_size(grid: tuple[int, ...], limits: Limits) -> Size3:
    """Return the size that FAST chooses for a kernel other than a convolution (paper 002, section 4.1)."""
    gx, gy, gz = pad_to_3d(grid)
    z = greatest_even_divisor(gz, min(8, limits.items))
    plane = limits.items // z
    x = min(-(-gx // 2), plane)
    return _clamp_size((x, min(plane // x, gy), z), limits)


def fast_convolution_size(grid: tuple[int, ...], limits: Limits) -> Size3:
    """Return the size that FAST chooses for a convolution (paper 002, section 4.1)."""
    gx, gy, gz = pad_to_3d(grid)
    z = greatest_divisor(gz, min(16, limits.sizes[2], limits.items))
    plane = min(256, limits.items) // z or 1
    x = min(gx, plane)
    y = min(plane // x, gy)
    if y == gy and gy % 2 == 0:
        y = gy // 2
    return _clamp_size((x, y, z), limits)


def exhaustive_sizes(grid: tuple[int, ...], limits: Limits) -> list[Size3]:
    """Return every size that EXHAUSTIVE tries (paper 002, section 4.2).

    Candidates are triples of divisors of the grid's dimensions with 32 to K work-items; if there are
    none, the grid's parts ⌈g/i⌉ for i from 1 to 4, and else 1 to 4 in each dimension.
    """
    dimensions = pad_to_3d(grid)
    choices = [[d for d in range(1, g + 1) if g % d == 0] for g in dimensions]
    sizes = [size for size in _triples(choices) if limits.allow(size) and prod(size) >= MIN_ITEMS]
    if not sizes:
        parts = [sorted({-(-g // i) for i in range(1, 5)}) for g in dimensions]
        sizes = [size for size in _triples(parts) if limits.allow(size)]
    if not sizes:
        sizes = [size for size in _triples([[1, 2, 3, 4]] * 3) if limits.allow(size)]
    if not sizes:
        raise StretchError(f"the device allows no work-group at all for a grid of {dimensions}")
    return sizes


def _triples(choices: list[list[int]]) -> list[Size3]:
    return [(x, y, z) for z in choices[2] for y in choices[1] for x in choices[0]]


def _clamp_size(size: Size3, limits: Limits) -> Size3:
    """Return the size reduced to the device's limits, which the paper's formulas ignore."""
    x, y, z = (max(1, min(n, most)) for n, most in zip(size, limits.sizes, strict=True))
    while x * y * z > limits.items:
        if x >= y and x >= z:
            x = max(1, x // 2)
        elif y >= z:
            y = max(1, y // 2)
        else:
            z = max(1, z // 2)
    return x, y, z


#: Rounds of measuring a subgraph before and after tuning.
PROFILE_ROUNDS = 4

Mode = Literal["fast", "exhaustive"]

#: Kernels to which FAST's rule for convolutions applies.
CONVOLUTIONS = ("conv", "depthwise", "stem")


@dataclass(frozen=True)
class TunedGroup:
    """The tuned work-group of one launch."""

    launch: Launch  # The launch before tuning.
    before_ms: float  # Time with the template's work-group.
    after_ms: float  # Time with the chosen work-group.
    local: Size | None  # The chosen size; None for the template's size.


def group_key(launch: Launch) -> str:
    """Return the key of a launch's work-group: all facts that its time depends on besides device and kernel source."""
    macros = " ".join(f"{key}={value}" for key, value in launch.defines)
    return f"{launch.shape} | {macros} | {'x'.join(map(str, launch.grid))}"[:500]


def apply_groups(launches: Iterable[Launch], cache: TuningCache) -> list[Launch]:
    """Return the launches with their tuned work-groups."""
    tuned_sizes = {(e.kernel, e.source, e.shape): e.parameters for e in cache.entries("workgroup")}
    changed = []
    for launch in launches:
        size = tuned_sizes.get((launch.kernel, source_hash(launch.kernel), group_key(launch)))
        if size is not None:
            local = tuple(size[axis] for axis in ("X", "Y", "Z")[: len(launch.grid)] if axis in size)
            launch = replace(launch, local=local or None)
        changed.append(launch)
    return changed


class LaunchTimer:
    """Runs single launches of a subgraph on zeros and reads the device's clock."""

    def __init__(self, device: OpenDevice, compiled: OpenCLCompiled) -> None:
        import pyopencl as cl

        self._cl = cl
        self._device = device
        ends = {**compiled.inputs, **compiled.outputs}
        zeros = {name: np.zeros(shape, np.float32) for name, shape in ends.items()}
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self._buffers = {name: cl.Buffer(device.context, flags, hostbuf=array) for name, array in zeros.items()}
        # The subgraph owns the memory of weights and intermediates that the commands use.
        self._owner = compiled
        self._commands = compiled.commands(self._buffers)
        self._warm: set[tuple[int, Size | None]] = set()

    def most_items(self, index: int) -> int:
        """Return the maximum work-items per work-group for a launch's kernel (K in paper 002)."""
        device = self._device.queue.device
        return int(self._commands[index].kernel.get_work_group_info(self._cl.kernel_work_group_info.WORK_GROUP_SIZE, device))

    def ms(self, index: int, local: Size | None) -> float:
        """Return the time in ms of one run of a launch with a work-group size; None for the driver's choice.

        The first run of a size is not counted, because PoCL compiles the kernel in it.
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

    def try_ms(self, index: int, default: Size | None, local: Size | None) -> float | None:
        """Return `ms`, with the default if the size is None; return None if the driver refuses the size."""
        try:
            return self.ms(index, default if local is None else local)
        except StretchError:
            return None


def tuned_groups(
    device: OpenDevice, compiled: OpenCLCompiled, mode: Mode, budget_s: float, progress: Progress = silent
) -> Iterator[TunedGroup]:
    """Time work-group sizes of every launch of a subgraph, each launch alone on the device's clock, and yield the best size.

    Equal launches are timed once; launches that the budget leaves out are not yielded.

    Args:
        mode: Candidates to time: one by formula, or every one.
    """
    end = time.monotonic() + budget_s
    seen: set[tuple[str, str]] = set()
    timer, launches = LaunchTimer(device, compiled), compiled.launches
    for i, (launch, next_launch) in enumerate(itertools.zip_longest(launches, launches[1:])):
        key = (launch.kernel, group_key(launch))
        if key not in seen and time.monotonic() < end:
            seen.add(key)
            candidates = group_candidates(launch, mode, Limits(timer.most_items(i), pad_to_3d(device.traits.max_sizes[:3])))
            measure = partial(timer.try_ms, i, launch.local)
            best, best_ms, default_ms = quickest(candidates, measure, out_of_time=lambda: time.monotonic() > end)
            yield TunedGroup(launch, default_ms, best_ms, best)
        progress(next_launch.kernel if next_launch else "")


def group_candidates(launch: Launch, mode: Mode, limits: Limits) -> list[Size]:
    """Return the candidate work-group sizes, without the size of the launch's template."""
    convolution = launch.kernel in CONVOLUTIONS
    sizes = (
        exhaustive_sizes(launch.grid, limits)
        if mode == "exhaustive"
        else [(fast_convolution_size if convolution else fast_size)(launch.grid, limits)]
    )
    return [size for size in dict.fromkeys(size[: len(launch.grid)] for size in sizes) if size != launch.local]


def group_entries(groups: Iterable[TunedGroup]) -> list[Entry]:
    """Return tuned groups as entries of the cache, without groups for which the template's size is best."""
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

"""The `opencl` delegate: this package's kernels on a GPU, or on CPU cores through PoCL."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from predictors.system import deferred_interrupts
from scheduler.delegates.base import Allocate, Delegate, NodePlacement, TunedKernel, Tuning, UnableError, delegates
from scheduler.delegates.opencl.compiled import OpenCLCompiled
from scheduler.delegates.opencl.device import device_traits, find_device, open_device, pinned_bytes, pinned_is_faster, unavailable_reason
from scheduler.delegates.opencl.graph import KernelGraph, fuse, read_graph, simplify
from scheduler.delegates.opencl.launch import Launch
from scheduler.delegates.opencl.schedule import Options, Schedules
from scheduler.delegates.opencl.templates import lower, refusals
from scheduler.delegates.opencl.tuner import (
    CONVOLUTIONS,
    PROFILE_ROUNDS,
    Mode,
    ScheduleTuner,
    TunedGroup,
    TunedSchedule,
    apply_groups,
    cached_schedules,
    faster_nodes,
    group_entries,
    group_key,
    interleaved_profiles,
    keep_faster,
    open_cache,
    schedule_entries,
    shipped_schedules,
    tuned_groups,
    tuned_key,
)
from scheduler.formats.onnx import open_onnx
from scheduler.memory import Planner
from scheduler.memory.plan import plan_offset
from scheduler.progress import Progress, silent

if TYPE_CHECKING:
    from scheduler.bundle.load import Bundle


class OpenCLTuning(Tuning):
    """Tuning of one subgraph in its precision.

    Args:
        delegate: Delegate in that precision.
        model: The subgraph's ONNX file.
        mode: ``fast`` or ``exhaustive`` for work-groups, None for the schedules of convolutions.
    """

    def __init__(self, delegate: "OpenCLDelegate", model: Path, name: str, mode: Mode | None) -> None:
        self._delegate = delegate
        self._model = model
        self._name = name
        self._mode = mode
        self._before = delegate.compile(model)
        device = self._before.device
        super().__init__(f"{device.name}, {device.driver}", self._steps())

    def _steps(self) -> int:
        """Return the number of launches, or of convolutions if their schedules are tuned."""
        launches = self._before.launches
        if self._mode is not None:
            return len(launches)
        return len({launch.node for launch in launches if launch.kernel in CONVOLUTIONS})

    def tune(self, budget_s: float, progress: Progress) -> dict[tuple[str, str], Any]:
        """Tune schedules or work-groups; choices found before an interruption are kept."""
        if self._mode is None:
            return {(tuned.kernel, tuned.shape): dict(tuned.choice) for tuned in self._delegate.tune(self._model, budget_s, progress)}
        groups = self._delegate.tune_groups(self._model, self._mode, budget_s, progress)
        return {
            (group.launch.kernel, group.launch.shape): None if group.local is None else {"local": list(group.local)} for group in groups
        }

    def rows(self, choices: Mapping[tuple[str, str], Any]) -> list[TunedKernel]:
        """Return each launch with its times before and after, measured in turns."""
        times = interleaved_profiles((self._before, self._delegate.compile(self._model)), PROFILE_ROUNDS)
        return [self._row(old, new, choices) for old, new in pair_launches(*times)]

    def _row(self, old: Any, new: Any, choices: Mapping[tuple[str, str], Any]) -> TunedKernel:
        launch, _ = new or old
        item_bytes = self._delegate.item_bytes
        return TunedKernel(
            name=launch.node,
            subgraph=self._name,
            kernel=launch.kernel,
            shape=launch.shape,
            macs=launch.macs,
            bytes=launch.traffic(item_bytes),
            precision="fp16" if item_bytes == 2 else "fp32",
            before_ms=None if old is None else old[1],
            after_ms=None if new is None else new[1],
            choice=choices.get(tuned_key(launch)),
        )


def pair_launches(before: Sequence[Any], after: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return pairs of a node's launches before and after; if the algorithm changed, each launch has a pair with None."""
    pairs: list[tuple[Any, Any]] = []
    nodes = list(dict.fromkeys([launch.node for launch, _ in (*before, *after)]))
    for node in nodes:
        old, new = ([row for row in launches if row[0].node == node] for launches in (before, after))
        if [launch.kernel for launch, _ in old] == [launch.kernel for launch, _ in new]:
            pairs += zip(old, new, strict=True)
        else:
            pairs += [(row, None) for row in old] + [(None, row) for row in new]
    return pairs


@delegates.register("opencl")
class OpenCLDelegate(Delegate):
    """Compiles subgraphs to OpenCL kernels.

    Args:
        cores: Cores of a CPU device; empty for the last one. A GPU takes none.
        half: Store activations and weights in half precision; arithmetic stays in float.
        options: Options of the compilation.
        planner: Planner of the memory for intermediate tensors.
        fallback: Let the `cpu` delegate run subgraphs that no kernel here computes or that the driver or device refuses.
    """

    summary: ClassVar[str] = "OpenCL kernels on a GPU, or on CPU cores through PoCL"
    asynchronous: ClassVar[bool] = True
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp16")
    drives: ClassVar[tuple[str, ...]] = ("gpu",)
    fuses, package = "opencl", "pyopencl"
    tunes: ClassVar[Mapping[str, str]] = {
        "schedule": "tiles of the convolutions",
        "fast": "one work-group by formula a kernel",
        "exhaustive": "every work-group",
    }

    def __init__(
        self,
        cores: tuple[int, ...] = (),
        *,
        half: bool = False,
        options: Options | None = None,
        planner: Planner = plan_offset,
        fallback: bool = False,
    ) -> None:
        self._cores = cores
        self.falls_back_on = "cpu" if fallback else None
        self._half = half
        self._options = options or Options()
        self._planner = planner

    @classmethod
    def unavailable(cls) -> str | None:
        """Return the reason if pyopencl or an OpenCL device is missing, else None."""
        return unavailable_reason()

    @property
    def item_bytes(self) -> int:
        """Bytes of an element as tensors are stored."""
        return 2 if self._half else 4

    @classmethod
    def create(cls, cores: tuple[int, ...]) -> Self:
        """Return a delegate whose CPU device computes on `cores`; subgraphs that it refuses run on the CPU."""
        return cls(cores, fallback=True)

    @classmethod
    def create_untuned(cls, cores: tuple[int, ...]) -> Self:
        """Return a delegate that reads no schedules from caches or tables."""
        return cls(cores, options=Options(tuned=False), fallback=True)

    @classmethod
    def needs_core(cls) -> bool:
        """Return whether the device is a CPU: its subgraphs need a core that they do not share with the scheduler's thread."""
        return device_traits(find_device()).cpu

    def allocator(self) -> Allocate | None:
        """Return an allocator of pinned memory if copies to and from it are faster, else None."""
        device = open_device(self._cores)
        return partial(pinned_bytes, device) if pinned_is_faster(device) else None

    def compile(self, model: Path) -> OpenCLCompiled:
        """Choose and build the kernels of a subgraph.

        Raises:
            MissingBackendError: If pyopencl or a device is missing.
            UnableError: If no kernel computes one of its operators, the driver does not compile a kernel, or the device has no memory.
        """
        graph = self.prepare(model)
        return self._compiled(graph, self.lower(graph))

    def compile_from(self, bundle: "Bundle", name: str) -> OpenCLCompiled:
        """Compile a bundle's subgraph, with half-precision storage if it is in fp16.

        Raises:
            StretchError: As `compile`.
        """
        entry = bundle.subgraph(name)
        return self.in_precision(entry.precision).compile(bundle.file(entry.file))

    def node_placements_from(self, bundle: "Bundle", name: str) -> list[NodePlacement]:
        """Return the operators' placements as `node_placements` does, in the subgraph's precision."""
        entry = bundle.subgraph(name)
        return self.in_precision(entry.precision).node_placements(bundle.file(entry.file))

    def tuning_from(self, bundle: "Bundle", name: str, mode: str) -> OpenCLTuning:
        """Return the tuning of a bundle's subgraph in its precision: of schedules, or in the other modes of work-groups."""
        entry = bundle.subgraph(name)
        groups: Mode | None = "fast" if mode == "fast" else "exhaustive" if mode == "exhaustive" else None
        return OpenCLTuning(self.in_precision(entry.precision), bundle.file(entry.file), name, groups)

    def in_precision(self, precision: str) -> "OpenCLDelegate":
        """Return this delegate, or for fp16 a copy that stores tensors in half precision."""
        if precision != "fp16" or self._half:
            return self
        return OpenCLDelegate(self._cores, half=True, options=self._options, planner=self._planner, fallback=self.falls_back_on is not None)

    def lower(self, graph: KernelGraph) -> list[Launch]:
        """Return the launches that compute a graph from `prepare`."""
        if not self._options.tuned:
            return self._launches(graph, {})
        device = open_device(self._cores)
        cache = open_cache(device, self._half)
        return apply_groups(self._launches(graph, {**shipped_schedules(device, self._half), **cached_schedules(cache)}), cache)

    def tune(self, model: Path, budget_s: float, progress: Progress = silent) -> list[TunedSchedule]:
        """Measure schedules for the untuned convolutions of a subgraph, and keep those that make it faster in the user's cache.

        Schedules found before an interruption are kept as well.

        Args:
            budget_s: Seconds after which no further kernel is begun.
            progress: Called after each convolution with the name of the next.
        """
        device = open_device(self._cores)
        graph = self.prepare(model)
        cache = open_cache(device, self._half)
        shipped, cached = shipped_schedules(device, self._half), cached_schedules(cache)
        tuned: list[TunedSchedule] = []
        try:
            for schedule in ScheduleTuner(device, half=self._half, options=self._options).tune(graph, cached, budget_s, progress, shipped):
                tuned.append(schedule)  # noqa: PERF402 - an interruption leaves results so far
        finally:
            if tuned:
                with deferred_interrupts():
                    before = {**shipped, **cached}
                    after = {**before, **{(entry.kernel, entry.shape): entry.choice for entry in tuned}}
                    tuned = keep_faster(tuned, self.compile_with(model, before), self.compile_with(model, after))
                    cache.save(schedule_entries(tuned))
        return tuned

    def compile_with(self, model: Path, schedules: Mapping[tuple[str, str], Mapping[str, int]]) -> OpenCLCompiled:
        """Compile a subgraph with the given schedules, whatever the cache holds.

        Args:
            schedules: Parameters by kernel and shape; other kernels are compiled untuned.

        Raises:
            StretchError: As `compile`.
        """
        graph = self.prepare(model)
        return self._compiled(graph, self._launches(graph, schedules))

    def _launches(self, graph: KernelGraph, schedules: Mapping[tuple[str, str], Mapping[str, int]]) -> list[Launch]:
        """Return the launches of a simplified and fused graph."""
        traits = open_device(self._cores).traits
        return lower(graph, traits.blocking(self._half), traits, self._options, Schedules(traits, schedules))

    def _compiled(self, graph: KernelGraph, launches: Sequence[Launch]) -> OpenCLCompiled:
        return OpenCLCompiled(open_device(self._cores), graph, launches, half=self._half, planner=self._planner)

    def tune_groups(self, model: Path, mode: Mode, budget_s: float, progress: Progress = silent) -> list[TunedGroup]:
        """Choose the work-group of every launch of a subgraph by FAST or EXHAUSTIVE, and keep those that are faster than the template's.

        Work-groups found before an interruption are kept as well.
        """
        device = open_device(self._cores)
        graph = self.prepare(model)
        compiled = self._compiled(graph, self.lower(graph))
        groups: list[TunedGroup] = []
        try:
            for group in tuned_groups(device, compiled, mode, budget_s, progress):
                groups.append(group)  # noqa: PERF402 - an interruption leaves results so far
        finally:
            chosen = {(group.launch.kernel, group_key(group.launch)): group.local for group in groups if group.local is not None}
            if chosen:
                with deferred_interrupts():
                    launches = [
                        replace(launch, local=chosen.get((launch.kernel, group_key(launch)), launch.local)) for launch in compiled.launches
                    ]
                    # Alone, a kernel finds other data in the caches than in the subgraph.
                    nodes = faster_nodes(compiled, self._compiled(graph, launches))
                    groups = [
                        group if group.launch.node in nodes else replace(group, local=None, after_ms=group.before_ms) for group in groups
                    ]
                    open_cache(device, self._half).save(group_entries(groups))
        return groups

    def prepare(self, model: Path) -> KernelGraph:
        """Read a subgraph's graph, simplify it and fuse its operators."""
        graph = read_graph(model)
        simplify(graph)
        fuse(graph, residual=self._options.fuse, activations=self._options.fuse)
        return graph

    def refusals(self, graph: KernelGraph) -> dict[str, str]:
        """Return the nodes of a simplified and fused graph that no kernel computes, by name, with the reason."""
        traits = open_device(self._cores).traits
        return refusals(graph, traits.blocking(self._half), traits, self._options, Schedules(traits, {}))

    def node_placements(self, model: Path) -> list[NodePlacement]:
        """Return each operator with its kernel's measured time or the operator that absorbed it, or why the subgraph is refused."""
        try:
            graph = read_graph(model)
            compiled = self.compile(model)
        except UnableError as error:
            reason = f"on the CPU instead, for the opencl delegate refuses its subgraph: {error.message}"
            return [NodePlacement(name, op, reason) for name, op in open_onnx(model).named_nodes]
        names = {node.name: node.op for node in graph.nodes}
        simplify(graph)
        times: dict[str, float] = {}
        kernels: dict[str, list[str]] = {}
        owner: dict[str, str] = {}
        for launch, ms in compiled.profile(fed=True):
            name = launch.node
            times[name] = times.get(name, 0.0) + ms
            kernels.setdefault(name, []).append(launch.kernel)
            owner.update(dict.fromkeys(launch.merged, name))
        placements = []
        for name, op in names.items():
            if name in times:
                placements.append(NodePlacement(name, op, f"{_kind(kernels[name])} on {compiled.device.name}", times[name]))
            elif name in owner:
                placements.append(NodePlacement(name, op, f"merged into `{owner[name]}`"))
            else:
                placements.append(
                    NodePlacement(name, op, graph.removed.get(name, "nothing is launched for it: its elements lie where they are read"))
                )
        placements += [NodePlacement(n, _kind(kernels[n]), "added to change the layout", times[n]) for n in times if n not in names]
        return placements


def _kind(kernels: list[str]) -> str:
    kinds = list(dict.fromkeys(kernels))
    return f"kernel {kinds[0]}" if len(kinds) == 1 else f"kernels {', '.join(kinds)}"

"""Finds the quickest schedule of each convolution by measuring, and keeps it for later compilations."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from predictors.errors import StretchError
from scheduler.delegates.opencl.compiled import OpenCLCompiled
from scheduler.delegates.opencl.device import OpenDevice
from scheduler.delegates.opencl.fuse import Activation
from scheduler.delegates.opencl.graph import Graph, Node
from scheduler.delegates.opencl.lower import lower
from scheduler.delegates.opencl.programs import programs_of, source_hash
from scheduler.delegates.opencl.schedule import Options, Parameters, Schedules
from scheduler.tuning import Entry, TuningCache

#: File of the kernel whose schedule a problem of this name asks for.
SOURCES = {"product": "conv", "winograd": "winograd_in"}
#: A candidate that took this many times the best one in its first run is not run again.
HOPELESS = 1.3
#: Part of the default's time that a candidate must stay below: noise must not replace a choice.
BETTER = 0.97


@dataclass(frozen=True)
class Tuned:
    """What tuning found for one kernel.

    Args:
        kernel: Name of the problem's kernel.
        shape: Its shape in words.
        before_ms: Time with the schedule that is taken untuned.
        after_ms: Time with the one that was chosen.
        choice: The parameters chosen.
        tried: Number of candidates measured.
        node: Node at which it was found; others of its shape take the same.
        default: The parameters that are taken untuned.
    """

    kernel: str
    shape: str
    before_ms: float
    after_ms: float
    choice: Parameters
    tried: int
    node: str = ""
    default: Parameters = field(default_factory=dict)


def open_cache(device: OpenDevice, half: bool) -> TuningCache:
    """The tuned schedules of a device and storage type."""
    return TuningCache(f"{device.name} {device.traits.id}{' half' if half else ''}", device.driver)


def cached_schedules(cache: TuningCache) -> dict[tuple[str, str], Mapping[str, int]]:
    """Schedules of kernels whose source has not changed since they were tuned."""
    return {
        (e.kernel, e.shape): e.parameters for e in cache.entries("schedule") if e.source == source_hash(SOURCES.get(e.kernel, e.kernel))
    }


class ScheduleTuner:
    """Times candidates of each convolution of a graph by themselves, on the device's clock.

    Candidates take turns, the least of at least three runs counts, and what is
    hopeless in its first run is dropped.

    Args:
        device: Where to measure.
        half: Whether tensors are stored in half precision.
        options: Switches of the compilation.
        top: Candidates of the analytic ranking that are measured.
        rounds: Runs of each candidate; at least 3.
    """

    def __init__(self, device: OpenDevice, *, half: bool = False, options: Options | None = None, top: int = 8, rounds: int = 4) -> None:
        self._device = device
        self._half = half
        self._options = options or Options()
        self._top = top
        self._rounds = max(3, rounds)

    def tune(
        self, graph: Graph, known: Mapping[tuple[str, str], Parameters], budget_s: float, step: Callable[[], None] | None = None
    ) -> list[Tuned]:
        """Tune every convolution of a simplified and fused graph, until the budget is spent.

        Args:
            graph: What `fuse` left.
            known: Schedules found before, which are not measured again.
            budget_s: Seconds after which no further kernel is begun.
            step: Called after each node.
        """
        end = time.monotonic() + budget_s
        done: dict[tuple[str, str], Tuned] = {}
        for node in graph.nodes:
            if node.op in ("Conv", "Gemm") and time.monotonic() < end:
                for found in self._tune_node(alone(graph, node), dict(known) | {key: each.choice for key, each in done.items()}):
                    done[found.kernel, found.shape] = replace(found, node=node.name)
            if step is not None:
                step()
        return list(done.values())

    def _tune_node(self, graph: Graph, known: dict[tuple[str, str], Parameters]) -> list[Tuned]:
        found: list[Tuned] = []
        options = self._options
        direct, winograd = replace(options, winograd="off"), replace(options, winograd="on")
        for each in (direct, winograd):
            schedules = Schedules(self._device.traits, known)
            self._compile(graph, each, schedules)
            for problem, candidates in schedules.asked:
                if (problem.kernel, problem.shape) in known:
                    continue
                tuned = self._choose(graph, each, known, (problem.kernel, problem.shape), candidates[: self._top])
                known[problem.kernel, problem.shape] = tuned.choice
                found.append(tuned)
        node = graph.nodes[0]
        if options.winograd == "auto" and node.op == "Conv":
            found += self._algorithm(graph, known)
        return found

    def _algorithm(self, graph: Graph, known: dict[tuple[str, str], Parameters]) -> list[Tuned]:
        """Whether Winograd's algorithm or the direct one is quicker, each with its best schedule."""
        compiled = {
            use: self._compile(graph, replace(self._options, winograd=use), Schedules(self._device.traits, known)) for use in ("off", "on")
        }
        launches = [launch for launch in compiled["on"].launches if launch.kernel == "winograd_in"]
        if not launches:
            return []
        shape = launches[0].shape.removesuffix(" input")
        if ("winograd", shape) in known:
            return []
        times = {use: min(_conv_ms(one) for _ in range(self._rounds)) for use, one in compiled.items()}
        automatic = self._compile(graph, self._options, Schedules(self._device.traits, known))
        use_untuned = int(any(launch.kernel == "winograd_in" for launch in automatic.launches))
        before = times["on" if use_untuned else "off"]
        use = int(times["on"] < BETTER * times["off"])
        return [Tuned("winograd", shape, before, times["on" if use else "off"], {"USE": use}, 2, default={"USE": use_untuned})]

    def _choose(
        self, graph: Graph, options: Options, known: dict[tuple[str, str], Parameters], key: tuple[str, str], candidates: list[Parameters]
    ) -> Tuned:
        trials: list[tuple[Parameters, OpenCLCompiled]] = []
        for candidate in candidates:
            try:
                trials.append((candidate, self._compile(graph, options, Schedules(self._device.traits, known | {key: candidate}))))
            except StretchError:
                # The driver does not compile it, or it needs more than the device has.
                continue
        if not trials:
            raise StretchError(f"no schedule of the kernel `{key[0]}` for {key[1]} can be compiled on `{self._device.name}`")
        best = [_conv_ms(one) for _, one in trials]
        for _ in range(self._rounds - 1):
            hopeful = HOPELESS * min(best)
            best = [
                min(ms, _conv_ms(one)) if ms <= hopeful or i == 0 else ms for i, (ms, (_, one)) in enumerate(zip(best, trials, strict=True))
            ]
        chosen = min(range(len(best)), key=best.__getitem__)
        if best[chosen] > BETTER * best[0]:
            chosen = 0
        return Tuned(
            *key, before_ms=best[0], after_ms=best[chosen], choice=dict(trials[chosen][0]), tried=len(trials), default=dict(trials[0][0])
        )

    def _compile(self, graph: Graph, options: Options, schedules: Schedules) -> OpenCLCompiled:
        copy = Graph(list(graph.nodes), dict(graph.constants), dict(graph.shapes), graph.inputs, graph.outputs)
        launches = lower(copy, self._device.traits.layout(self._half), self._device.traits, options, schedules)
        inputs, outputs = ({name: graph.shapes[name] for name in names} for names in (graph.inputs, graph.outputs))
        return OpenCLCompiled(self._device, programs_of(self._device, self._half), launches, inputs, outputs, half=self._half)


def faster(found: list[Tuned], before: OpenCLCompiled, after: OpenCLCompiled, rounds: int = 3) -> list[Tuned]:
    """What was found, with the untuned choice where the subgraph itself is not faster with it: there other kernels have used the caches before.

    Args:
        found: What was found for nodes by themselves.
        before: The subgraph without it.
        after: The subgraph with all of it.
        rounds: Times that both are profiled, in turns.
    """
    nodes = faster_nodes(before, after, rounds)
    return [each if each.node in nodes else replace(each, choice=each.default, after_ms=each.before_ms) for each in found]


def faster_nodes(before: OpenCLCompiled, after: OpenCLCompiled, rounds: int = 3) -> set[str]:
    """Nodes of a subgraph whose launches take less time in its second form, both profiled in turns."""
    times: list[dict[str, float]] = [{}, {}]
    for _ in range(rounds):
        for best, compiled in zip(times, (before, after), strict=True):
            total: dict[str, float] = {}
            for each in compiled.profile(2):
                total[each.launch.node] = total.get(each.launch.node, 0.0) + each.ms
            for node, ms in total.items():
                best[node] = min(ms, best.get(node, ms))
    return {node for node, ms in times[1].items() if ms <= BETTER * times[0].get(node, 0.0)}


def _conv_ms(compiled: OpenCLCompiled) -> float:
    """Time of the convolution in a graph of `alone`: all launches but conversions and the activation after it."""
    return sum(each.ms for each in compiled.profile(1) if each.launch.kernel not in ("move", "elementwise"))


def alone(graph: Graph, node: Node) -> Graph:
    """One node as a graph; an activation after it keeps its result on the device, as it is inside a network."""
    inputs = tuple(dict.fromkeys(name for name in node.inputs if name and name not in graph.constants))
    end = f"{node.output}:end"
    after = Node(end, "Unary", (node.output,), end, {"activation": Activation("relu")})
    shapes = {name: graph.shapes[name] for name in (*inputs, node.output)} | {end: graph.shapes[node.output]}
    constants = {name: graph.constants[name] for name in node.inputs if name in graph.constants}
    return Graph([node, after], constants, shapes | {name: array.shape for name, array in constants.items()}, inputs, (end,))


def entries(found: list[Tuned]) -> list[Entry]:
    """What was found, as the cache keeps it."""
    return [
        Entry(
            "schedule",
            each.kernel,
            source_hash(SOURCES.get(each.kernel, each.kernel)),
            each.shape,
            dict(each.choice),
            each.after_ms,
            each.before_ms,
        )
        for each in found
    ]

"""Latency of a graph on a processor: kernels by the backend's fusion rules, then the sum of their times."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from predictors.devices import ITEM_BYTES, DeviceProfile, Precision, Processor, SlowdownFactors
from predictors.errors import StretchError
from predictors.faults import nearest
from predictors.fits import Prior
from predictors.fusion import Fuser, Kernel, KernelCost, load_rules
from predictors.graph import OpGraph
from predictors.host import HOST, is_host, kind_of
from predictors.joins import meeting_of
from predictors.kinds import kinds
from predictors.models.roofline import MEASURED, KernelModel, KernelTime, Origin, RooflinePredictor
from predictors.rewrites import GROUPED, apply_exact_rewrites, owner_of
from predictors.shapes import pixels, width
from predictors.side_by_side import Shares

# Cost of transferring a tensor between two processors of a device.
#
# A processor is reached through the CPU: sending a tensor costs a map and a
# conversion, reading one back costs an unmap, a synchronisation and a conversion (paper 003,
# sections 2.1 and 7.1). Two processors other than the CPU exchange tensors through the CPU.
#
# Measured whole networks show a constant for each inference: the call, and the transfers
# of the input and of the output. A part of a network is called and fed like a whole
# network, so the fixed part of an exchange is never less than that constant.


class LinkModel:
    """Transfer times between the processors of one device.

    Args:
        device: The device's profile.
        fixed_ms: Returns the measured constant of an inference on a processor in a precision, ms; 0 if none was measured.
    """

    def __init__(self, device: DeviceProfile, fixed_ms: Callable[[str, str], float]) -> None:
        self._device, self._fixed_ms = device, fixed_ms
        self._fixed: dict[tuple[str, str | None], tuple[float, float]] = {}

    def ms(self, source: str, target: str, elements: int, precision: str) -> float:
        """Return the time until `target` can read a tensor of `source`, ms.

        Args:
            source: Processor that holds the tensor, with or without core set.
            target: Processor that needs it, with or without core set.
            precision: Precision of the transfer, that of the processor other than the CPU.
        """
        return float(sum(self.parts(source, target, elements, precision).values()))

    def parts(self, source: str, target: str, elements: Any, precision: str) -> dict[str, Any]:
        """Return the transfer time by link in ms, named after its processor other than the CPU; numbers, or arrays for several tensors."""
        return self.parts_of_bytes(source, target, elements * ITEM_BYTES[precision], precision)

    def parts_of_bytes(self, source: str, target: str, size: Any, precision: str | None = None) -> dict[str, Any]:
        """Return the times of a transfer of `size` bytes, ms: the part out of `source` and the part into `target`, by processor."""
        start, end = kind_of(source), kind_of(target)
        ms_by_link: dict[str, Any] = {}
        if start == end:
            return ms_by_link
        if start != HOST:
            link = self._device.links[start]
            rate = link.convert_back_gbs or link.convert_gbs
            ms_by_link[start] = self._fixed_parts(source, precision)[1] + size / (rate.value * 1e6)
        if end != HOST:
            link = self._device.links[end]
            ms_by_link[end] = self._fixed_parts(target, precision)[0] + size / (link.convert_gbs.value * 1e6)
        return ms_by_link

    def _fixed_parts(self, processor: str, precision: str | None) -> tuple[float, float]:
        """Return the fixed times to send a tensor to a processor and to read one back, ms: in sum at least the constant of an inference."""
        key = processor, precision
        if key not in self._fixed:
            on, link = self._device.processor(processor), self._device.links[kind_of(processor)]
            into, back = link.map_ms.value, link.unmap_ms.value + link.sync_ms.value
            # a tensor between two other processors is transferred in the precision of one of them
            least = self._fixed_ms(processor, precision if precision in on.precisions else on.default_precision)
            share = into / (into + back) if into + back else 0.5
            self._fixed[key] = max(into, share * least), max(back, (1 - share) * least)
        return self._fixed[key]


# Slowdown or speed-up of a kernel while other processors compute: they share the memory and the chip's power.
#
# A profile states, for each other processor, a factor for kernels that multiply and one
# for kernels that move memory. A kernel between the two gets its share of each, and
# its launch takes as long as before.


class KernelsTime(NamedTuple):
    """Time of several kernels in sequence, ms."""

    ms: float  # Time while other processors are idle.
    arithmetic_ms: float  # Part of the time that others change like multiplying.
    memory_ms: float  # Part of the time that others change like moving memory.

    @classmethod
    def of(cls, time: KernelTime) -> "KernelsTime":
        """Return the time of a single kernel."""
        work, varying = time.compute_ms + time.memory_ms, max(0.0, time.ms - time.launch_ms)
        memory = time.memory_ms / work if work else 0.0
        return cls(time.ms, varying * (1 - memory), varying * memory)

    @classmethod
    def total(cls, times: "Iterable[KernelsTime]") -> "KernelsTime":
        """Return the sum of several times."""
        return cls(*(sum(column) for column in zip((0.0, 0.0, 0.0), *times, strict=True)))

    @property
    def shares(self) -> Shares:
        """The two parts as shares of the time."""
        return Shares(self.arithmetic_ms / self.ms, self.memory_ms / self.ms) if self.ms else Shares()

    def slowed(self, slowing: SlowdownFactors) -> float:
        """Return the time while others compute; an array for arrays of times."""
        return self.ms + (slowing.arithmetic - 1) * self.arithmetic_ms + (slowing.memory - 1) * self.memory_ms


class Handover(NamedTuple):
    """Time of one inference beyond its kernels: the call, and the transfers of its input and output."""

    processor: str  # Name of the processor.
    precision: Precision  # Precision of the inference.
    ms: float  # Time in ms.
    #: Interval as factors on the time, if it was measured with whole networks; None if it comes from links.
    measured: tuple[float, float] | None


class KernelEstimate(NamedTuple):
    """One kernel of a prediction, with its time."""

    kernel: Kernel
    time: KernelTime


@dataclass(frozen=True)
class Estimate:
    """A predicted latency."""

    computing: KernelsTime  # Time of the kernels, which is the time of a part of a network inside a plan, where links give the transfers.
    handover: Handover  # Time of the inference beyond its kernels.
    low_ms: float  # Lower end of the interval.
    high_ms: float  # Upper end of the interval.
    processor: str  # Name of the processor.
    precision: Precision  # Precision of the inference.
    origin: Origin  # Source of the kernel times: a fit, fits of other devices, or the roofline.
    source: str = "predicted"  # Always ``predicted``.
    kernels: tuple[KernelEstimate, ...] = field(default=(), repr=False)  # Parts of the time, in order.

    @property
    def ms(self) -> float:
        """Most likely time of a whole inference, with input and output in the host's memory: kernels and hand-over."""
        return self.computing_ms + self.handover.ms

    @property
    def handover_ms(self) -> float:
        """Time of the inference beyond its kernels."""
        return self.handover.ms

    @property
    def computing_ms(self) -> float:
        """Time of the kernels alone."""
        return self.computing.ms

    @property
    def calibrated(self) -> bool:
        """Whether the times of this processor, core set and precision were fitted to measurements on the device."""
        return self.origin in MEASURED


#: Maximum number of cached estimates, enough for a few graphs on every core set in every precision.
_MAX_ESTIMATES = 128


class LatencyPredictor:
    """Predicts graphs on the processors of one device.

    Kernel times are cached, so that thousands of similar graphs are cheap.

    Args:
        device: The device's profile.
    """

    def __init__(self, device: DeviceProfile) -> None:
        self.device = device
        self.links = LinkModel(device, lambda processor, precision: self._inference_ms(processor, precision, 0))
        self._models: dict[tuple[str, str | None], KernelModel] = {}
        self._fusers: dict[object, Fuser] = {}
        #: Estimates of the latest graphs, because plans and their controls request the same graphs again.
        self._estimates: dict[tuple[int, str, str | None], tuple[OpGraph, Estimate]] = {}
        #: Times by cost, of kernels that the processor computes, and of kernels that the CPU computes for it.
        self._known: dict[tuple[str, str | None], tuple[dict[KernelCost, KernelsTime], dict[KernelCost, KernelsTime]]] = {}

    def predict(self, graph: OpGraph, processor: str, precision: str | None = None) -> Estimate:
        """Return the latency of `graph` alone on `processor`, with input and output in the host's memory.

        Args:
            processor: Name such as ``gpu`` or ``cpu[1large]``.
            precision: Precision; None for the processor's default.
        """
        key = (id(graph), processor, precision)
        cached = self._estimates.get(key)
        if cached is None:
            if len(self._estimates) >= _MAX_ESTIMATES:
                self._estimates.clear()
            cached = self._estimates[key] = graph, self._estimate(graph, processor, precision)
        return cached[1]

    def _estimate(self, graph: OpGraph, processor: str, precision: str | None) -> Estimate:
        model, on = self._model(processor, precision), self.device.processor(processor)
        checked_precision = on.check_precision(precision)
        launched = self.kernels(graph, processor)
        times = self._times(launched, processor, precision)
        handover = self.handover(processor, precision, *io_elements(graph))
        computing = KernelsTime.total(map(KernelsTime.of, times))
        low, high = (end * (computing.ms + handover.ms) for end in model.interval())
        kernels = tuple(KernelEstimate(kernel, time) for kernel, time in zip(launched, times, strict=True))
        return Estimate(computing, handover, low, high, processor, checked_precision, origin_of(on, checked_precision), kernels=kernels)

    def handover(self, processor: str, precision: str | None = None, reads: Iterable[int] = (), writes: Iterable[int] = ()) -> Handover:
        """Return the time of an inference on a processor beyond its kernels: a measured constant, else the sum of the links.

        Args:
            reads: Number of elements of each input, which is in the host's memory.
            writes: Number of elements of each output, which the host needs.
        """
        checked_precision, model = self.device.processor(processor).check_precision(precision), self._model(processor, precision)
        read, written = list(reads), list(writes)
        if constant := self._inference_ms(processor, precision, sum(read) + sum(written)):
            return Handover(processor, checked_precision, constant, model.interval())
        ms = sum(self.links.ms(HOST, processor, elements, checked_precision) for elements in read)
        return Handover(
            processor,
            checked_precision,
            ms + sum(self.links.ms(processor, HOST, elements, checked_precision) for elements in written),
            None,
        )

    def kernels(self, graph: OpGraph, processor: str, rewrites: Sequence[str] = ()) -> list[Kernel]:
        """Return the kernels that the processor's backend launches for `graph`, named after operators of `graph`; cached in the graph.

        Args:
            rewrites: Exact rewrites of `graph`, in addition to those of the processor's runtime.
        """
        profile = self.device.processor(processor).profile
        if profile.launching not in self._fusers:
            check_unsupported(self.device.id, processor, profile.unsupported)
            self._fusers[profile.launching] = Fuser(load_rules(profile.backend), profile.unsupported)
        kernels_by_rules: dict[object, list[Kernel]] = vars(graph).setdefault("_kernels", {})
        key = profile.launching, tuple(rewrites)
        if key not in kernels_by_rules:
            kernels_by_rules[key] = _launched_kernels(graph, self._fusers[profile.launching], (*profile.rewrites, *rewrites))
        return kernels_by_rules[key]

    def kernels_time(self, kernels: Sequence[Kernel], processor: str, precision: str | None = None) -> KernelsTime:
        """Return the time of kernels from `kernels` in sequence."""
        return KernelsTime.total(self.kernels_times(kernels, processor, precision))

    def kernels_times(self, kernels: Sequence[Kernel], processor: str, precision: str | None = None) -> list[KernelsTime]:
        """Return the time of each of the kernels.

        New kernels are timed together, and a call with many kernels takes
        little longer than a call with few.
        """
        cached = self._known.setdefault((processor, precision), ({}, {}))
        values = [cached[kernel.elsewhere].get(kernel.cost) for kernel in kernels]
        new = [kernel for kernel, time in zip(kernels, values, strict=True) if time is None]
        if new:
            for kernel, time in zip(new, self._times(new, processor, precision), strict=True):
                cached[kernel.elsewhere][kernel.cost] = KernelsTime.of(time)
        return [time or cached[kernel.elsewhere][kernel.cost] for kernel, time in zip(kernels, values, strict=True)]

    def kernel_ms(self, kernel: Kernel, processor: str, precision: str | None = None) -> float:
        """Return the time of one kernel, ms."""
        return self._times([kernel], processor, precision)[0].ms

    def _times(self, kernels: Sequence[Kernel], processor: str, precision: str | None) -> list[KernelTime]:
        """Return the time of each kernel; a kernel that the CPU computes also takes the transfers of its tensors, both ways."""
        times = self._model(processor, precision).times([kernel.cost for kernel in kernels])
        elsewhere = [i for i, kernel in enumerate(kernels) if kernel.elsewhere]
        if not elsewhere:
            return times
        checked_precision = self.device.processor(processor).check_precision(precision)
        host_times = self._model(HOST, None).times([kernels[i].cost for i in elsewhere])
        for i, time in zip(elsewhere, host_times, strict=True):
            cost = kernels[i].cost
            moved = self.links.ms(processor, HOST, cost.reads, checked_precision) + self.links.ms(
                HOST, processor, cost.writes, checked_precision
            )
            times[i] = time._replace(ms=time.ms + moved, launch_ms=time.launch_ms + moved)
        return times

    def join_ms(self, kind: str, shape: tuple[int, ...], branches: int, host: str, precision: str | None = None) -> float:
        """Return the time that the host takes to join branch outputs, ms.

        Outputs that are contiguous slices of the joined tensor take no time, because each
        branch writes its own slice: channels if they are the slowest axis, bands of rows if
        rows are. Other outputs are copied.

        Args:
            kind: Kind of the join, by its name in designs or bundles.
            precision: Precision on the host; the processor's default if None.
        """
        meeting = meeting_of(kind)
        if not meeting.copies(self.device.processor(host).profile.layout):
            return 0.0
        written = prod(shape)
        cost = KernelCost(meeting.kernel, 1, 1, width(shape), 1, pixels(shape), written * meeting.reads(branches), written, 0)
        return self.kernel_ms(Kernel("join", ("join",), cost, 0), host, precision)

    def _inference_ms(self, processor: str, precision: str | None, elements: int) -> float:
        """Return the measured constant of an inference, ms: in the precision, else in the default one, because a call takes as long in both."""
        models = (self._model(processor, at) for at in (precision, None))
        return next((model.inference_ms(elements) for model in models if model.inference_ms()), 0.0)

    def _model(self, processor: str, precision: str | None) -> KernelModel:
        """Return the model of kernel times: a fit if there is one, else relatives or the roofline."""
        key = (processor, precision)
        cached = self._models.get(key)
        if cached is None:
            cached = self._models[key] = self._new_model(self.device.processor(processor), precision)
        return cached

    def _new_model(self, processor: Processor, precision: str | None) -> KernelModel:
        checked_precision = processor.check_precision(precision)
        fit, prior = processor.fits.get(checked_precision), processor.priors.get(checked_precision)
        if fit is None:
            return self._related(prior, processor) if prior else RooflinePredictor(processor, precision)
        # Evaluating fits needs numpy, which profiles without fits do not need.
        from predictors.models.fitted import FittedModel

        return FittedModel(fit, processor)

    def _related(self, prior: Prior, processor: Processor) -> KernelModel:
        """Return the model of an unmeasured processor."""
        from predictors.models.related import RelatedModel

        return RelatedModel.of(prior, processor)


def io_elements(graph: OpGraph) -> tuple[list[int], list[int]]:
    """Return the number of elements of each input and of each output of a network."""
    return [prod(op.shape) for op in graph.inputs], [prod(graph.by_name[name].shape) for name in graph.outputs]


def _launched_kernels(graph: OpGraph, fuser: Fuser, rewrites: Sequence[str]) -> list[Kernel]:
    """Return the kernels of a graph after exact rewrites; a kernel for a part of an operator has the operator's name."""
    built = apply_exact_rewrites(graph, rewrites)[0]
    kernels = fuser.fuse(built)
    if built is graph:
        return kernels
    owners = {op.name: owner_of(op) for op in built.ops}
    return [kernel._replace(name=owners[kernel.name], ops=tuple({owners[name]: None for name in kernel.ops})) for kernel in kernels]


def check_unsupported(device: str, processor: str, names: Iterable[str]) -> None:
    """Refuse a profile whose list of unsupported operators is impossible."""
    for name in names:
        statement = f"processor `{processor}` of {device} lists `{name}` as unsupported"
        if name not in kinds and name != GROUPED:
            raise StretchError(f"{statement}, which is no kind of operator", nearest(name, (*kinds, GROUPED)))
        if is_host(processor):
            raise StretchError(f"{statement}, and the CPU computes what others do not", "leave its `unsupported` out")


def origin_of(processor: Processor, precision: str) -> Origin:
    """Return the origin of a processor's times at a precision."""
    if (fit := processor.fits.get(precision)) is not None:
        return "fit" if fit.sibling is None else "sibling"
    if (prior := processor.priors.get(precision)) is None:
        return "roofline"
    if prior.calibration is None:
        return "relatives"
    return "similar" if prior.calibration.similar else "networks"


def not_measured(device: str, origins: Iterable[tuple[str, Origin]]) -> str | None:
    """Return a sentence that names the times without a fit to measurements on the device; None if all have one.

    Args:
        origins: Processors or predicted quantities, each with the model of its times.
    """
    guessed = [quantity for quantity, origin in dict.fromkeys(origins) if origin not in MEASURED]
    if not guessed:
        return None
    return f"not fitted to measurements on {device}, so estimates: {', '.join(guessed)}"

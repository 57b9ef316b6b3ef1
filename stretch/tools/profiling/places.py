"""Processors of this machine to measure, with their delegates, core sets and fusion rules."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from predictors.errors import MissingBackendError, UnknownNameError, UsageError
from predictors.host import HOST
from scheduler.cores import available_cores
from scheduler.delegates import Delegate, delegates, get_delegate
from scheduler.placement.mapping import drivers, first_driver


@dataclass(frozen=True)
class Place:
    """A processor with one core set."""

    family: str  # Such as ``cpu``.
    core_set: str  # Such as ``1core``.
    delegate: str  # Name of its delegate.
    cores: tuple[int, ...]  # CPU cores that it computes on; empty for other devices.
    share: float  # Relative share of the measuring time.

    @property
    def name(self) -> str:
        """Name such as ``cpu[1core]``."""
        return f"{self.family}[{self.core_set}]"

    @property
    def backend(self) -> str:
        """Its fusion rules."""
        return get_delegate(self.delegate).fuses

    @property
    def runtime(self) -> str:
        """Runtime and version."""
        from stretch.environment import version

        package = get_delegate(self.delegate).package
        untuned = ", kernels not tuned" if get_delegate(self.delegate).tunes else ""
        return f"{package} {version(package) or 'of unknown version'}, delegate {self.delegate}{untuned}"

    def create(self) -> Delegate:
        """Create its delegate, with untuned kernels, as gains of tuning depend on which shapes were tuned."""
        return get_delegate(self.delegate).create_untuned(self.cores)

    @property
    def serial(self) -> bool:
        """Whether it computes on one core of this machine."""
        return len(self.cores) == 1

    @property
    def caller(self) -> tuple[int, ...]:
        """Cores for the calling thread: those of the processor, unless the delegate computes on another thread."""
        if not get_delegate(self.delegate).asynchronous:
            return self.cores
        return tuple(core for core in available_cores() if core not in self.cores)


def find_places(processors: Sequence[str] = ()) -> list[Place]:
    """Find the processors of this machine, the CPU with all its core sets first.

    Args:
        processors: Such as ``cpu``, ``gpu``, ``cpu[1core]`` or ``cpu=openvino``; empty for all with an available delegate.
    """
    places_by_family: dict[str, list[Place]] = {}
    for entry in processors or [HOST, *(kind for kind in ("gpu", "npu") if any(_available(_measured(kind))))]:
        name, _, chosen = entry.partition("=")
        family, bracket, core_set = name.partition("[")
        if family in places_by_family:
            raise UsageError(f"the processor `{family}` is named twice", "name each once, as --processors cpu,gpu")
        places_by_family[family] = _places(family, chosen)
        if bracket:
            known = {place.core_set: place for place in places_by_family[family]}
            if core_set.removesuffix("]") not in known:
                raise UnknownNameError.among("core set", name, [place.name for place in places_by_family[family]])
            places_by_family[family] = [known[core_set.removesuffix("]")]]
    if HOST not in places_by_family:
        raise UsageError(
            "a profile needs the processor `cpu`, which joins branches", f"add it: --processors {HOST},{','.join(places_by_family)}"
        )
    return [place for family in sorted(places_by_family, key=lambda name: name != HOST) for place in places_by_family[family]]


def _measured(kind: str) -> dict[str, type[Delegate]]:
    """Delegates that drive a kind of processor and tell the times of its kernels."""
    return {name: delegate for name, delegate in drivers(kind) if delegate.fuses}


def _available(able: Mapping[str, type[Delegate]]) -> Iterator[str]:
    return (name for name, delegate in able.items() if delegate.unavailable() is None)


def _places(family: str, chosen: str) -> list[Place]:
    # where no delegate that measures the processor is available the first says why
    able = _measured(family)
    name = chosen or (HOST if family == HOST else first_driver(_available(able)) or next(iter(able), ""))
    known = [name for name in delegates if delegates.get(name).fuses]
    if name not in known:
        if not chosen:
            raise UnknownNameError.among("processor to measure", family, ["cpu", "gpu", "npu"])
        if name in delegates:
            raise UsageError(
                f"the `{name}` delegate tells no times of kernels, of which a profile is made",
                "calibrate a profile by times of whole networks instead: `stretch profile --fit NETWORKS.csv --device BASE`",
            )
        raise UnknownNameError.among("delegate to measure", name, known)
    delegate = get_delegate(name)
    missing = delegate.unavailable()
    if missing is not None:
        raise MissingBackendError(f"`{family}` cannot be measured: {missing}", "leave it out of --processors")
    cores = available_cores()
    if family != HOST:
        return [Place(family, "all", name, cores[-1:] if delegate.needs_core() else (), 4.0)]
    counts = sorted({1, len(cores), *(count for count in (2, 4) if count < len(cores))})
    return [Place(family, f"{n}core{'s' if n > 1 else ''}", name, cores[:n], 3.0 if n == 1 else 1.5) for n in counts]

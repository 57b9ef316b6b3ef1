"""Measurements on a phone: each signature of a subgraph on every processor that supports its precision."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from predictors.devices import DeviceProfile
from predictors.errors import StretchError, UsageError
from predictors.graph import OpGraph
from scheduler.bundle.load import Bundle
from stretch.export.tflite.source import read_source
from stretch.phone.benchmark import Target

#: Precision that a processor computes a signature's in. A file's fp16 are weights in half precision, which the CPU widens; a
#: GPU computes reals in half precision; int8 is for the CPU and for what was made for it.
COMPUTES: dict[Target, dict[str, str]] = {
    "cpu": {"fp32": "fp32", "fp16": "fp32", "int8": "int8"},
    "gpu": {"fp32": "fp16", "fp16": "fp16"},
    "npu": {"int8": "int8"},
}

_CORES = re.compile(r"\d+")


@dataclass(frozen=True)
class Place:
    """A processor of the phone, in the words of the profile that is to be fitted."""

    target: Target  # What `benchmark_model` is told.
    family: str  # Name in the profile.
    core_set: str  # Such as ``3med``.
    threads: int = 1  # Of the CPU; 1 for others.

    @property
    def name(self) -> str:
        """As profiles name it."""
        return f"{self.family}[{self.core_set}]"


@dataclass(frozen=True)
class Work:
    """A signature on a processor."""

    signature: str  # Its name.
    segment: str  # Of the design.
    network: str  # Name that the measurements have of it.
    precision: str  # That the processor computes in.
    place: Place  # The processor.


def places(profile: DeviceProfile, core_set: str | None, npu: bool) -> list[Place]:
    """The processors of a profile that are measured.

    Args:
        core_set: Of its CPU; its default if None.
    """
    measured_places: list[Place] = []
    for family, processor in profile.processors.items():
        target: Target = "cpu" if family == "cpu" else "gpu" if family == "gpu" else "npu"
        chosen = processor.default_core_set
        if target == "cpu" and core_set is not None:
            if core_set not in processor.core_sets:
                raise UsageError(f"the cpu of `{profile.id}` has no core set `{core_set}`", f"it has {', '.join(processor.core_sets)}")
            chosen = core_set
        threads = sum(map(int, _CORES.findall(chosen))) or 1 if target == "cpu" else 1
        if target != "npu" or npu:
            measured_places.append(Place(target, family, chosen, threads))
    return measured_places


def works(bundle: Bundle, where: Sequence[Place]) -> list[Work]:
    """Every signature of a subgraph on every processor that takes its precision.

    Joins are left out: the profile has their time as that of a link.
    """
    model = bundle.manifest.model.name
    signature_works = [
        Work(sub.name, sub.segment, f"{model}:{sub.name}", COMPUTES[place.target][sub.precision], place)
        for sub in bundle.manifest.subgraphs
        for place in where
        if sub.precision in COMPUTES[place.target]
    ]
    if not signature_works:
        raise StretchError(f"{bundle.path} has no subgraph that can be measured on {', '.join(place.name for place in where)}")
    return signature_works


def graph_of(bundle: Bundle, work: Work) -> OpGraph:
    """The operators of a signature, as measurements keep them."""
    file = next(sub.file for sub in bundle.manifest.subgraphs if sub.name == work.signature)
    return replace(read_source(bundle.file(file)).graph, name=work.network)


def family_of(bundle: Bundle, work: Work) -> str:
    """Relatives of a signature, which are left out with it when a fit is judged: the branches of its segment."""
    return f"{bundle.manifest.model.name}:{work.segment}"


def mask_of(cores: str | None) -> int:
    """Cores such as ``0,4-6`` as a mask; 0 for none."""
    mask = 0
    for part in (cores or "").split(",") if cores is not None else ():
        first, dash, last = part.strip().partition("-")
        numbers = (first, last if dash else first)
        if not all(number.isdecimal() and number.isascii() and int(number) < 64 for number in numbers) or int(numbers[0]) > int(numbers[1]):
            raise UsageError(f"`{cores}` names no cores", "write them as 4-6 or 0,7")
        for core in range(int(numbers[0]), int(numbers[1]) + 1):
            mask |= 1 << core
    return mask

"""The output of ncnn's `benchncnn`: one line per network."""

import re
from dataclasses import dataclass
from pathlib import Path

from predictors.errors import StretchError
from predictors.files import read_bytes

MAX_BYTES = 1 << 22

_NUMBER = r"([-+.\w]+)"
_LINE = re.compile(rf"^\s*(\S+)\s+min\s*=\s*{_NUMBER}\s+max\s*=\s*{_NUMBER}\s+avg\s*=\s*{_NUMBER}\s*$")
_SETTING = re.compile(r"^\s*(num_threads|powersave|gpu_device|loop_count)\s*=\s*(-?\d+)\s*$")

#: Suffixes of networks with 8-bit weights and activations.
_INT8 = ("_int8", "-int8")

#: Networks of the tool that exist in torchvision or timm, by the tool's names.
NAMES = {
    "squeezenet": "squeezenet1_1",
    "mobilenet_v2": "mobilenet_v2",
    "mobilenet_v3": "mobilenet_v3_large",
    "mnasnet": "mnasnet1_0",
    "googlenet": "googlenet",
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "alexnet": "alexnet",
    "vgg16": "vgg16",
    "efficientnet_b0": "efficientnet_b0",
    "shufflenet_v2": "shufflenet_v2_x1_0",
    "regnety_400m": "regnet_y_400mf",
}

_HINT = "give the text that `benchncnn 8 1 0 -1` prints, a line `resnet18  min = 1.0  max = 1.2  avg = 1.1` a network"


@dataclass(frozen=True)
class Bench:
    """A network in one run of the tool."""

    name: str  # Name in `benchncnn`, without the suffix of its precision.
    precision: str  # ``int8`` if the name says so, else ncnn's default precision ``fp16``.
    min_ms: float  # Fastest run.
    max_ms: float  # Slowest run.
    avg_ms: float  # Mean of the runs.


def read_benchncnn(path: Path) -> tuple[list[Bench], dict[str, int]]:
    """Return the networks, and settings such as ``num_threads``; other lines are ignored."""
    try:
        text = read_bytes(path, "output of benchncnn", MAX_BYTES, _HINT).decode()
    except UnicodeDecodeError as error:
        raise StretchError(f"{path} is not text", _HINT) from error
    benches: dict[tuple[str, str], Bench] = {}
    settings: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if setting := _SETTING.match(line):
            settings[setting[1]] = int(setting[2])
        elif match := _LINE.match(line):
            bench = _bench(path, number, *match.groups())
            if (bench.name, bench.precision) in benches:
                raise StretchError(f"{path}, line {number}: `{match[1]}` is there twice", "keep the output of one run")
            benches[bench.name, bench.precision] = bench
    if not benches:
        raise StretchError(f"{path} has no line of a network", _HINT)
    return list(benches.values()), settings


def _bench(path: Path, line: int, name: str, *numbers: str) -> Bench:
    times = []
    for text in numbers:
        try:
            times.append(float(text))
        except ValueError as error:
            raise StretchError(f"{path}, line {line}: `{text}` is not a time in ms", _HINT) from error
    least, most, mean = times
    if not 0 < least <= mean <= most < 1e7:
        raise StretchError(f"{path}, line {line}: min {least:g}, avg {mean:g} and max {most:g} ms cannot be those of one network", _HINT)
    short = next((name.removesuffix(end) for end in _INT8 if name.endswith(end)), None)
    return Bench(short or name, "int8" if short else "fp16", least, most, mean)

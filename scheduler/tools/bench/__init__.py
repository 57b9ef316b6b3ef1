"""Any files in turns: what they are, what they ran on, how sure their times are, and a record that others can check."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from typer import Option

from predictors.errors import UsageError

#: Heading of the options of timing in the help of `stretch compare`.
PANEL = "Options of --measure"


@dataclass(frozen=True)
class MeasurementLength:
    """Length of a measurement."""

    rounds: Annotated[int, Option(help="Measured rounds per start.", min=1, max=100_000, rich_help_panel=PANEL)] = 20
    starts: Annotated[
        int,
        Option(
            help="Number of starts, each of which loads all files again; with --width, the maximum.",
            min=1,
            max=8,
            rich_help_panel=PANEL,
        ),
    ] = 5
    warmup: Annotated[
        int, Option(help="Maximum number of warm-up rounds; they end when times are stable.", min=0, max=100_000, rich_help_panel=PANEL)
    ] = 50
    width: Annotated[
        float | None,
        Option(help="After 3 starts, stop when the interval of every median is narrower than this share of it.", rich_help_panel=PANEL),
    ] = None

    def __post_init__(self) -> None:
        """Reject parameters that give no interval."""
        from scheduler.measure.steady import MOST_STARTS

        if self.rounds < 1 or not 1 <= self.starts <= MOST_STARTS or self.warmup < 0:
            raise UsageError(
                f"{self.rounds} rounds of {self.starts} starts are not a measurement", f"1 to {MOST_STARTS} starts are possible"
            )
        if self.width is not None and not 0 < self.width < math.inf:
            raise UsageError(f"a width of {self.width:g} is no share of a time", "give 0.02 for 2 %")


@dataclass(frozen=True)
class BenchRequest:
    """Parameters of a benchmark."""

    what: Sequence[str]  # Paths of files and bundles.
    runtimes: Annotated[
        Sequence[str],
        Option(
            "--with",
            help="Runtime for the files: onnxruntime, openvino, opencl or litert; repeatable. Default: all installed ones except opencl.",
            rich_help_panel=PANEL,
        ),
    ] = ()
    cores: Annotated[
        int | None,
        Option(help="Cores for each file, one thread per core. Default: all of this process.", min=1, rich_help_panel=PANEL),
    ] = None
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)  # Shapes of inputs, by name or under `subject.UNNAMED`.
    effort: MeasurementLength = field(default_factory=MeasurementLength)
    seed: Annotated[
        int, Option(help="Random seed of inputs and of the order within rounds.", min=0, max=1 << 32, rich_help_panel=PANEL)
    ] = 0
    processor: str = "unknown"  # Name of the processor, for the record.
    system: str = "unknown"  # Operating system and architecture.
    versions: Mapping[str, str] = field(default_factory=dict)  # Versions of packages, for the record.

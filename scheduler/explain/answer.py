"""What is told of a file on a runtime, as structs whose fields are the keys of the JSON."""

from pathlib import Path

import msgspec


class RuntimeOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Where one operator of the file ends up."""

    name: str  # Its name; one without is numbered.
    op: str  # Its type.
    target: str | None  # What takes it, such as ``CPUExecutionProvider``; None if nothing here does, or it is not there any more.
    taken: bool | None  # Whether the processor asked about takes it; None if it is gone before anything is asked.
    partition: int | None  # Number of its partition on that processor.
    macs: int  # Multiply-accumulates; 0 where it has none, or its shapes are open.
    reason: str  # Why, in words.


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps one operator from the processor."""

    operator: str  # Its name.
    op: str  # Its type.
    cause: str  # The attribute, type, shape or version that stops it, or the operator itself.
    words: str | None  # What the runtime says; None if it says nothing.
    change: str  # What to change.


class Mend(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that were tried and found to help."""

    steps: tuple[str, ...]  # What is changed, in order, in words.
    operators: tuple[int, int]  # Operators off the processor before and after.
    file: Path | None = None  # The file that was written; None if none was.
    #: Largest difference between the results of both models, over the largest result; None if they were not compared.
    max_error: float | None = None


class RuntimeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A file on a runtime; the fields are the keys of `stretch explain --runtime --json`."""

    file: Path  # The file.
    runtime: str  # The runtime with its version.
    device: str  # What it was asked about.
    operators: list[RuntimeOperator]  # Each operator, in execution order.
    partitions: int  # Parts of the network that the processor gets in one piece.
    obstacles: list[Obstacle]  # What keeps operators from it; the first in execution order comes first.
    copies: int  # Tensors that cross between the processor and others, and conversions that the runtime adds.
    share: float | None  # Share of the multiply-accumulates that the processor takes; None if there are none.
    fix: Mend | None  # What can be changed by a machine; None if nothing known helps.
    log: str  # What the runtime wrote while it was asked, its end where that is long.
    warnings: list[str]  # What a person should know.

    @property
    def off(self) -> int:
        """Operators that the processor does not take."""
        return sum(op.taken is False for op in self.operators)


class Verdict(msgspec.Struct, kw_only=True):
    """What a runtime says of a file; operators are told by their place."""

    runtime: str  # The runtime with its version.
    device: str  # What it was asked about.
    target: str  # What it calls that.
    taken: dict[int, str] = {}  # What takes each operator, the CPU's included.
    gone: dict[int, str] = {}  # Operators that are folded or merged before anything is asked, and why.
    said: dict[int, str] = {}  # The runtime's words for operators that are not taken.
    parts: dict[int, int] = {}  # Partition of operators, where the runtime tells.
    refused: str | None = None  # Its words for refusing the whole file.
    at: int | None = None  # Place of the operator that they are about; None for none.
    added: int = 0  # Conversions and copies that it adds.
    warnings: list[str] = []  # What a person should know.

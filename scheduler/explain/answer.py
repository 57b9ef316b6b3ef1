"""What is told of a file on a runtime, as structs whose fields are the keys of the JSON."""

from pathlib import Path

import msgspec


class RuntimeOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Where one operator of the file ends up.

    Args:
        name: Its name; one without is numbered.
        op: Its type.
        target: What takes it, such as ``CPUExecutionProvider``; None if nothing here does, or it is not there any more.
        taken: Whether the processor asked about takes it; None if it is gone before anything is asked.
        partition: Number of its partition on that processor.
        macs: Multiply-accumulates; 0 where it has none, or its shapes are open.
        reason: Why, in words.
    """

    name: str
    op: str
    target: str | None
    taken: bool | None
    partition: int | None
    macs: int
    reason: str


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps one operator from the processor.

    Args:
        operator: Its name.
        op: Its type.
        cause: The attribute, type, shape or version that stops it, or the operator itself.
        words: What the runtime says; None if it says nothing.
        change: What to change.
    """

    operator: str
    op: str
    cause: str
    words: str | None
    change: str


class Mend(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that were tried and found to help.

    Args:
        steps: What is changed, in order, in words.
        operators: Operators off the processor before and after.
        file: The file that was written; None if none was.
        max_error: Largest difference between the results of both models, over the largest result; None if they were not compared.
    """

    steps: tuple[str, ...]
    operators: tuple[int, int]
    file: Path | None = None
    max_error: float | None = None


class RuntimeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A file on a runtime; the fields are the keys of `stretch explain --runtime --json`.

    Args:
        file: The file.
        runtime: The runtime with its version.
        device: What it was asked about.
        operators: Each operator, in execution order.
        partitions: Parts of the network that the processor gets in one piece.
        obstacles: What keeps operators from it; the first in execution order comes first.
        copies: Tensors that cross between the processor and others, and conversions that the runtime adds.
        share: Share of the multiply-accumulates that the processor takes; None if there are none.
        fix: What can be changed by a machine; None if nothing known helps.
        log: What the runtime wrote while it was asked, its end where that is long.
        warnings: What a person should know.
    """

    file: Path
    runtime: str
    device: str
    operators: list[RuntimeOperator]
    partitions: int
    obstacles: list[Obstacle]
    copies: int
    share: float | None
    fix: Mend | None
    log: str
    warnings: list[str]

    @property
    def off(self) -> int:
        """Operators that the processor does not take."""
        return sum(op.taken is False for op in self.operators)


class Verdict(msgspec.Struct, kw_only=True):
    """What a runtime says of a file; operators are told by their place.

    Args:
        runtime: The runtime with its version.
        device: What it was asked about.
        target: What it calls that.
        taken: What takes each operator, the CPU's included.
        gone: Operators that are folded or merged before anything is asked, and why.
        said: The runtime's words for operators that are not taken.
        parts: Partition of operators, where the runtime tells.
        refused: Its words for refusing the whole file.
        at: Place of the operator that they are about; None for none.
        added: Conversions and copies that it adds.
        warnings: What a person should know.
    """

    runtime: str
    device: str
    target: str
    taken: dict[int, str] = {}
    gone: dict[int, str] = {}
    said: dict[int, str] = {}
    parts: dict[int, int] = {}
    refused: str | None = None
    at: int | None = None
    added: int = 0
    warnings: list[str] = []

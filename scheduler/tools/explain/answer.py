"""How a runtime executes a model file; the fields of the structs are the keys of the JSON."""

from pathlib import Path

import msgspec


class RuntimeOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Placement of one operator."""

    name: str  # Name; a number if the file has none.
    op: str  # Operator type.
    target: str | None  # Processor or provider, such as ``CPUExecutionProvider``; None if there is none, or the operator is folded.
    taken: bool | None  # Whether the target processor takes it; None if it is folded before partitioning.
    partition: int | None  # Index of its partition on that processor.
    macs: int  # Multiply-accumulates; 0 where it has none, or its shapes are dynamic.
    reason: str  # Explanation of `taken`.


class UnsupportedReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why the processor does not support one operator."""

    operator: str  # Operator name.
    op: str  # Operator type.
    cause: str  # The unsupported attribute, type, shape or version, or the operator itself.
    words: str | None  # Message of the runtime; None if there is none.
    change: str  # Suggested change of the model.


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of the file after which the processor takes more operators."""

    steps: tuple[str, ...]  # Descriptions of the changes, in order.
    operators: tuple[int, int]  # Number of unsupported operators before and after.
    file: Path | None = None  # Changed file; None if it was not written.
    #: Largest difference between the outputs of both models, relative to the largest output; None if not compared.
    max_error: float | None = None


class RuntimeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `stretch explain --runtime --json`."""

    file: Path
    runtime: str  # Name and version.
    device: str  # Target device.
    operators: list[RuntimeOperator]  # In execution order.
    partitions: int  # Number of partitions on the processor.
    obstacles: list[UnsupportedReason]  # Unsupported operators, in execution order.
    copies: int  # Tensors copied between the processor and others, and conversions that the runtime adds.
    share: float | None  # Share of the multiply-accumulates on the processor; None if there are none.
    fix: Fix | None  # Automatic fix; None if there is none.
    log: str  # Output of the runtime; the end of a long one.
    warnings: list[str]

    @property
    def off(self) -> int:
        """Number of operators that the processor does not take."""
        return sum(op.taken is False for op in self.operators)


class Verdict(msgspec.Struct, kw_only=True):
    """Operator support as a runtime reports it; keys are the indices of operators."""

    runtime: str  # Name and version.
    device: str  # Target device.
    target: str  # Runtime's name of that device.
    taken: dict[int, str] = {}  # Provider or processor of each operator, the CPU included.
    gone: dict[int, str] = {}  # Operators that are folded or merged before partitioning, with the reason.
    said: dict[int, str] = {}  # Messages of the runtime for unsupported operators.
    parts: dict[int, int] = {}  # Partition of each operator, where the runtime reports it.
    refused: str | None = None  # Error message if the runtime rejects the whole file.
    at: int | None = None  # Index of the operator that the error names; None for none.
    added: int = 0  # Number of conversions and copies that the runtime adds.
    warnings: list[str] = []

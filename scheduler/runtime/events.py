"""Events that the state machine takes in and instructions it gives out (paper 003, Algorithm 1)."""

import msgspec


class InputReady(msgspec.Struct, frozen=True):
    """The model's input is in its buffer."""


class SubgraphDone(msgspec.Struct, frozen=True):
    """A subgraph has written its output tensor."""

    subgraph: str


class JoinDone(msgspec.Struct, frozen=True):
    """A join has written its output tensor."""

    join: str


class SubgraphFailed(msgspec.Struct, frozen=True):
    """A subgraph's delegate raised; its output tensor is worthless."""

    subgraph: str
    error: str


class JoinFailed(msgspec.Struct, frozen=True):
    """A join raised; its output tensor is worthless."""

    join: str
    error: str


class Enqueue(msgspec.Struct, frozen=True):
    """Put a subgraph into the command queue of an asynchronous processor; it returns at once."""

    subgraph: str


class Submit(msgspec.Struct, frozen=True):
    """Hand a subgraph to the one thread of a processor whose call blocks."""

    subgraph: str


class RunInline(msgspec.Struct, frozen=True):
    """Run a subgraph on the calling thread, then report it."""

    subgraph: str


class Join(msgspec.Struct, frozen=True):
    """Join branch outputs on the calling thread, then report it."""

    join: str


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do here until one of these subgraphs is reported done or failed."""

    subgraphs: tuple[str, ...]


class Finish(msgspec.Struct, frozen=True):
    """The model's output is in its buffer."""

    output: str


class Fail(msgspec.Struct, frozen=True):
    """The inference is lost and nothing of it runs any more."""

    step: str
    error: str


Event = InputReady | SubgraphDone | JoinDone | SubgraphFailed | JoinFailed
Instruction = Enqueue | Submit | RunInline | Join | Wait | Finish | Fail

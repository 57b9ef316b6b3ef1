"""Events that the state machine takes in and instructions it gives out (paper 003, Algorithm 1): plain data, which can be written down.

An inference runs in a *lane*, which has buffers of its own; a *step* is a
subgraph or join of the plan; a *queue* runs one step at a time.
"""

import msgspec

from scheduler.placement.place import Placement


class _Data(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Tagged with the name of its class where it is written down."""


class InputReady(_Data, frozen=True):
    """The inputs of an inference are in the buffers of its lane."""

    lane: int


class StepDone(_Data, frozen=True):
    """A step has written its output tensors."""

    lane: int
    step: str
    queue: str


class StepFailed(_Data, frozen=True):
    """A step raised; its output tensors are worthless."""

    lane: int
    step: str
    queue: str
    error: str


class StepReturned(_Data, frozen=True):
    """A subgraph could not be run where it was placed and has touched nothing but its outputs; from now on it is placed elsewhere."""

    lane: int
    step: str
    queue: str
    placement: Placement


class Replaced(_Data, frozen=True):
    """A subgraph is placed elsewhere from now on; where it runs already, it ends first."""

    step: str
    placement: Placement


class Start(_Data, frozen=True):
    """A step is to be run on a queue, which has nothing else to do."""

    lane: int
    step: str
    queue: str


class Enqueue(Start, frozen=True):
    """Put a subgraph into the command queue of an asynchronous processor; it returns at once."""


class Submit(Start, frozen=True):
    """Hand a subgraph to the one thread of a queue whose call blocks."""


class RunInline(Start, frozen=True):
    """Run a subgraph on the calling thread, then report it."""


class Join(Start, frozen=True):
    """Join branch outputs on the thread of a queue, then report it."""


class Wait(_Data, frozen=True):
    """Nothing for the calling thread to do until one of these steps, by queue, is reported."""

    running: dict[str, str]


class Finish(_Data, frozen=True):
    """All outputs of a lane are in their buffers; the lane is free once they were read."""

    lane: int


class Fail(_Data, frozen=True):
    """The inference of a lane is lost and nothing of it runs any more; the lane is free."""

    lane: int
    step: str
    error: str


Event = InputReady | StepDone | StepFailed | StepReturned | Replaced
Instruction = Enqueue | Submit | RunInline | Join | Wait | Finish | Fail

"""Records of a state machine's events and answers, as lines of JSON, and their replay.

A record holds one or more machines, each opened with its complete initial
state, then every event in the order of handling, with the instructions
that were carried out. Nothing in a record depends on a clock, so that the
same run can be replayed on another machine.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import msgspec

from predictors.errors import StretchError
from predictors.files import open_regular
from scheduler.bundle.manifest import JoinEntry
from scheduler.placement.place import Placement
from scheduler.runtime.machine import ONLY_CLIENT, Event, Finish, Instruction, Machine
from scheduler.runtime.plan import PlannedSubgraph, build_plan

SCHEMA = 1

#: Maximum length of a line in bytes, enough for the plan of the largest bundle.
MAX_LINE = 64 << 20

_HINT = "record the run again"


class Opening(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Initial state of a machine."""

    schema: int  # Version of this format.
    machine: int  # Number of the machine in this record.
    inputs: tuple[str, ...]  # Tensors that the caller provides.
    outputs: tuple[str, ...]  # Tensors that the caller gets.
    subgraphs: tuple[PlannedSubgraph, ...]  # Subgraphs of the plan.
    joins: tuple[JoinEntry, ...]  # Joins of the plan.
    placements: dict[str, Placement]  # Placement of each subgraph.
    lanes: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]  # Maximum number of inferences at once.
    caller: bool  # Whether the thread that reports events also works.
    movable: tuple[str, ...] = ()  # Delegates whose subgraphs may run on any queue with the same number of cores.

    @classmethod
    def of(cls, number: int, machine: Machine) -> "Opening":
        """Return the opening of a machine with one client."""
        client = machine.clients[ONLY_CLIENT]
        plan = client.plan
        return cls(
            SCHEMA,
            number,
            plan.inputs,
            plan.outputs,
            tuple(plan.subgraphs.values()),
            tuple(plan.joins.values()),
            dict(client.placements),
            client.lanes,
            machine.caller is not None,
            tuple(sorted(client.movable)),
        )

    def make_machine(self) -> Machine:
        """Return the machine, with nothing in flight."""
        plan = build_plan(self.inputs, self.outputs, self.subgraphs, self.joins)
        return Machine.of(plan, self.placements, self.lanes, caller=self.caller, movable=self.movable)


class Line(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """An event and the machine's answer."""

    machine: int  # Number of the machine.
    event: Event  # Input of the state machine.
    instructions: list[Instruction]  # The machine's answer.


class Recorder:
    """Writes a record while machines run; safe to call from several threads.

    Args:
        path: File to write; an existing file is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._machines = 0
        self._error: OSError | None = None
        try:
            self._file: IO[bytes] = path.open("wb")
        except OSError as error:
            raise self._failure(error) from error

    def open(self, machine: Machine) -> int:
        """Start the record of a machine, and return its number."""
        with self._lock:
            number, self._machines = self._machines, self._machines + 1
        self._write(Opening.of(number, machine))
        return number

    def write(self, machine: int, event: Event, instructions: Sequence[Instruction]) -> None:
        """Write an event and its answer."""
        self._write(Line(machine, event, list(instructions)))

    def close(self) -> None:
        """Write everything to disk and close the file; may be called twice."""
        with self._lock:
            try:
                self._file.close()
            except OSError as error:
                self._error = self._error or error
            failure, self._error = self._error, None
        if failure is not None:
            raise self._failure(failure) from failure

    def _write(self, line: Opening | Line) -> None:
        """Write a line, and keep an error for `close`: a full disk must not end a thread that runs inferences."""
        data = self._encoder.encode(line) + b"\n"
        with self._lock:
            # Reports of a thread after the session was closed belong to no run.
            if self._error is None and not self._file.closed:
                try:
                    self._file.write(data)
                except OSError as error:
                    self._error = error

    def _failure(self, error: OSError) -> StretchError:
        return StretchError(f"cannot write the record {self._path}: {error.strerror}", "choose another file")


@dataclass(frozen=True)
class Replay:
    """Result of a replay in which new machines gave the recorded answers."""

    machines: int  # Number of machines opened.
    events: int  # Number of events replayed.
    finished: int  # Number of inferences that finished successfully.


def replay(path: Path) -> Replay:
    """Send the events of a record to new machines, and compare their answers with the record."""
    machines: dict[int, Machine] = {}
    events = finished = 0
    for number, line in _lines(path):
        location = f"line {number} of {path}"
        instructions = _apply(machines, line, location)
        if isinstance(line, Line):
            if instructions != line.instructions:
                raise StretchError(f"{location} answers {_describe(line.instructions)}, the state machine {_describe(instructions)}", _HINT)
            events += 1
            finished += sum(isinstance(instruction, Finish) for instruction in instructions)
    if not machines:
        raise StretchError(f"{path} is no record of a run: it has no line", _HINT)
    return Replay(len(machines), events, finished)


def _apply(machines: dict[int, Machine], line: Opening | Line, location: str) -> list[Instruction]:
    """Return the answer of a line's machine to its event; an opening adds its machine."""
    if isinstance(line, Opening) and line.schema != SCHEMA:
        raise StretchError(f"{location} has schema {line.schema}, this nn-stretch replays {SCHEMA}", _HINT)
    if isinstance(line, Line) and line.machine not in machines:
        raise StretchError(f"{location} is of machine {line.machine}, which no line before it opens", _HINT)
    try:
        if isinstance(line, Opening):
            machines[line.machine] = line.make_machine()
            return []
        return machines[line.machine].handle(line.event)
    except (ValueError, StretchError) as error:
        raise StretchError(f"{location} cannot follow what stands before it: {error}", _HINT) from error


def _lines(path: Path) -> Iterator[tuple[int, Opening | Line]]:
    decoder = msgspec.json.Decoder(Opening | Line)
    number = 0
    try:
        with open_regular(path) as stream:
            while data := stream.readline(MAX_LINE):
                number += 1
                if not data.endswith(b"\n"):
                    raise StretchError(f"line {number} of {path} is cut off", _HINT)
                yield number, decoder.decode(data)
    except OSError as error:
        raise StretchError(f"cannot read the record {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"line {number} of {path} is no line of a record: {error}", _HINT) from error


def _describe(instructions: Sequence[Instruction]) -> str:
    """Return the instructions as text, short enough for a sentence."""
    text = msgspec.json.encode(list(instructions)).decode()
    return text if len(text) <= 300 else f"{text[:300]}…"

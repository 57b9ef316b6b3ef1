"""The design: where branches meet and how each is scaled or divided (paper 003, table 2).

The branches of an exactly divided segment together compute exactly the segment's output. Each kind of division is a file of
`stretch.planning.divisions`. The file's name is also the key of a branch's share in design files, as ``rows = [0, 14]``; its
`DIVISION` is a `Division`. Design files, the search, the timeline, torch modules and reports only use this object and name no division.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import msgspec
import tomli_w

from predictors.errors import StretchError
from predictors.files import read_toml
from predictors.graph import OpGraph
from predictors.joins import JoinKind
from predictors.predictor import Estimate, LatencyPredictor
from predictors.slices import Channels, weight_rows
from stretch.planning.network.segments import EntryKind, Segment

DESIGN_VERSION = 1

_EXAMPLE = "a design has [[segments]] with name and branches = [{processor, depth, width}, …]"


T = TypeVar("T")

_FOLDER = Path(__file__).parent.parent / "divisions"
#: The order in which divisions are tried; others follow by name.
_FIRST = ("rows", "channels", "paths", "ends")

#: Names of all divisions: the files of their folder.
_FOUND = [module.name for module in iter_modules([str(_FOLDER)])]
DIVISION_NAMES = tuple(sorted(_FOUND, key=lambda name: (name not in _FIRST, (*_FIRST, name).index(name), name)))

#: Maximum of every number in a design file, beyond the size of any network.
MAX_COUNT = 1 << 24
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
#: Part of a segment that a branch computes: for most divisions the start of a range and its exclusive end.
Share = tuple[Count | str, ...]


@dataclass(frozen=True)
class Taken:
    """A branch's part of one operator's weights."""

    channels: Channels  # Output channels that the branch computes; a weight has one row for each or for several of them.
    width: int  # Output channels of the whole operator.
    columns: Channels | None = None  # Input channels that a projection reads; None for all.
    zeros: tuple[str, ...] = ()  # Weights that are zero because another branch holds them.

    def rows(self, count: int) -> Channels:
        """Return the branch's rows of a weight that has `count` rows in the whole operator."""
        return weight_rows(self.channels, self.width, count)


@dataclass(frozen=True)
class Piece:
    """One branch's part of a segment."""

    graph: OpGraph  # Operators of the branch, named as in the segment.
    taken: Mapping[str, Taken] = field(default_factory=dict)  # Slices of weights, by operator name; empty without slices.


class Division:
    """A kind of division; its methods expect segments whose branches all have shares."""

    word: str  # Name of the division, from the name of its file.
    kind: ClassVar[str]  # Item of the request's `kinds` that selects it; several divisions may have the same kind.
    joins: ClassVar[tuple[str, ...]]  # Exact joins that may end its branches.
    what: ClassVar[str]  # Noun phrase for the part that one branch computes, for messages.
    example: ClassVar[str] = "[first, behind the last]"  # A share, as in design files.
    #: Weights of a branch: the ``same`` as every other branch, namely all of the segment's; ``slices`` of these (`Piece.taken`); or its ``own``,
    #: the weights of operators that no other branch computes.
    weights: ClassVar[Literal["same", "slices", "own"]] = "own"
    vectors: ClassVar[bool] = False  # Whether it also divides vectors, so that each linear layer is a separate part.
    halo: ClassVar[bool] = False  # Whether its branches repeat rows at their borders.

    # a design

    def join(self, segment: Segment) -> str:
        """Return the default join, for a design that names none."""
        return self.joins[0]

    def check(self, segment: Segment, design: "SegmentDesign", shares: Sequence[Share]) -> None:
        """Refuse shares that do not cover the segment exactly once; the error names the segment and valid shares."""
        raise NotImplementedError

    def pieces(self, graph: OpGraph, names: Sequence[str], shares: Sequence[Share], join: str) -> list[Piece]:
        """Return the part of the undivided segment `graph` that each branch computes."""
        raise NotImplementedError

    def text(self, share: Share) -> str:
        """Return a short description of a share."""
        return f"{self.word} {':'.join(map(str, share))}"

    # the timeline

    def input_graph(self, graph: OpGraph, holder: str, processor: str, predictor: LatencyPredictor) -> OpGraph:
        """Return the graph that a branch runs if `holder` holds its input; it differs from `graph` if the transfer cuts the input."""
        return graph

    def repeated_ms(self, whole: OpGraph, pieces: Sequence[tuple[OpGraph, Estimate, float]]) -> float:
        """Return the time of computations that several branches repeat, ms; `pieces` has each branch's graph, estimate and contention factor."""
        return 0.0

    # the search

    def candidates(self, parts: Any) -> Iterable[tuple[int, Any]]:
        """Return options (`SegmentOptions`) for parts, and runs of parts, of a `PartSpace`, each with the index of its first part."""
        raise NotImplementedError

    def divisible_tensors(self, graph: OpGraph) -> Collection[str]:
        """Return the names of possible divisions of a part, such as ``rows``, as `stretch list models --details` prints them."""
        return ()

    def obstacle(self, graph: OpGraph) -> str | None:
        """Return the reason why a network, or a part of it, cannot be divided; None if no single reason exists."""
        return None

    def remark(self, stages: Sequence[Segment]) -> str | None:
        """Return a note about stages that cannot be divided, for reports; None for no note."""
        return None


@cache
def divisions() -> dict[str, Division]:
    """Return every division by name; the first call imports their files."""
    result: dict[str, Division] = {}
    for word in DIVISION_NAMES:
        result[word] = import_module(f"stretch.planning.divisions.{word}").DIVISION
        result[word].word = word
    return result


def exact_kinds() -> tuple[str, ...]:
    """Return the items of a request's `kinds` that select exact divisions."""
    return tuple(dict.fromkeys(division.kind for division in divisions().values()))


def of_kinds(kinds: Collection[str]) -> list[Division]:
    """Return the divisions that a request's `kinds` select."""
    return [division for division in divisions().values() if division.kind in kinds]


def with_shares(branch: type[T]) -> type[T]:
    """Return the branch class with one more field per division, for the share; at most one of these fields is not None."""
    name, namespace = branch.__name__, {"__doc__": branch.__doc__, "__module__": branch.__module__}
    if issubclass(branch, msgspec.Struct):
        fields = [(word, Share | None, None) for word in DIVISION_NAMES]
        struct = msgspec.defstruct(name, fields, bases=(branch,), namespace=namespace, frozen=True, kw_only=True)
        return cast(type[T], struct)  # msgspec's stub does not state the bases of the result
    shares = [(word, Share | None, field(default=None)) for word in DIVISION_NAMES]
    return make_dataclass(name, shares, bases=(branch,), namespace=namespace, frozen=True)


def shares_of(branch: object) -> dict[str, Share]:
    """Return a branch's share, by the name of its division."""
    return {word: share for word in DIVISION_NAMES if (share := getattr(branch, word)) is not None}


def range_of(share: Share) -> tuple[int, int]:
    """Return start and exclusive end of a share that is a range; the segment must have been checked."""
    start, stop = map(int, share)
    return start, stop


def safe_name(processor: str) -> str:
    """Return a processor's name as a part of module and operator names: ``cpu[1large]`` → ``on_cpu_1large``, so that no branch hides torch's `Module.cpu`."""
    return "on_" + "".join(c if c.isalnum() else "_" for c in processor).strip("_")


@with_shares
@dataclass(frozen=True)
class BranchScale:
    """One branch of one segment.

    In an exactly divided segment it also states its share, under the name of the division
    (`DIVISION_NAMES`), such as ``rows=(0, 14)``.
    """

    processor: str  # Name of its processor; unique in its segment, unless branches pass tensors to each other.
    depth: int  # Number of kept blocks, the entry block included.
    width: int  # Channels of the branch's own backbone (its output before the join).
    entry: EntryKind = "none"  # Beginning of the branch.
    partition: int = 0  # Channels this branch contributes to the joined tensor.
    #: Scaled inner channel counts are multiples of this number (the slice of the processor: 4 for PHWC4, 32 for a DSP).
    align: int = 8
    #: Replaced operators (`predictors.rewrites`), such as ``silu=relu6``; none in a branch that computes exactly the
    #: original's output.
    rewrites: tuple[str, ...] = ()
    #: Numbers of the blocks that it lacks, ascending; if empty, `depth` drops blocks evenly from all runs.
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True)
class SegmentDesign:
    """Operators after `start` up to and with `end`, and the branches that replace them."""

    name: str  # ``stem``, ``s1``, ``s2``, …, ``head``.
    start: str  # Cut point the segment reads.
    end: str  # Cut point the segment writes: the meeting point.
    #: One for a whole segment, else one per processor; or portions in a valid execution order, any number per processor.
    branches: tuple[BranchScale, ...]
    join: JoinKind = "none"  # Join of the branch outputs; ``none`` for a segment that keeps its original width on one processor.

    @property
    def whole(self) -> bool:
        """Whether the segment stays on one processor."""
        return len(self.branches) == 1

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the blocks that a segment on one processor lacks; empty for several branches."""
        return self.branches[0].dropped if self.whole else ()

    @property
    def division(self) -> Division | None:
        """The exact division of the segment; None if it is whole, or its branches are scaled copies."""
        words = {word for branch in self.branches for word in shares_of(branch)}
        named = [division for word, division in divisions().items() if word in words] if words else []
        eligible = [division for division in (named or divisions().values()) if self.join in division.joins]
        return next(iter(eligible or named), None)

    @property
    def shares_weights(self) -> bool:
        """Whether the branches have the same weights or slices of them, so that each weight counts once."""
        return self.division is not None and self.division.weights != "own"

    @property
    def undivided(self) -> "SegmentDesign":
        """The whole segment on its first processor."""
        no_share: dict[str, Any] = dict.fromkeys(DIVISION_NAMES)
        return replace(self, branches=(replace(self.branches[0], **no_share),), join="none")

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each branch: its processor, with a number from the processor's second branch on, such as ``cpu``, ``gpu``, ``cpu_2``."""
        seen: dict[str, int] = {}
        result = []
        for branch in self.branches:
            number = seen[branch.processor] = seen.get(branch.processor, 0) + 1
            result.append(branch.processor if number == 1 else f"{branch.processor}_{number}")
        return tuple(result)


class SideDesign(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The processor of a side, a part outside the backbone (`stretch.planning.network.segments`)."""

    name: str  # ``side1``, ``side2``, …
    processor: str  # Processor of the side.


@dataclass(frozen=True)
class BranchDesign:
    """The paper's (N_meet, N_branch, L_meet, R_depth, R_width) of one model."""

    model: str  # Name of the model the design is for.
    device: str  # Profile that it was planned for.
    segments: tuple[SegmentDesign, ...]  # In order, from the input of the backbone to its output.
    version: int = field(default=DESIGN_VERSION)
    #: Every side, in a valid execution order; empty for a network with one input and one output.
    sides: tuple[SideDesign, ...] = ()

    @property
    def n_meet(self) -> int:
        """Number of meeting points, where at least two branches join or portions on several processors end."""
        return sum(not segment.whole for segment in self.segments)

    @property
    def processors(self) -> tuple[str, ...]:
        """Names of the used processors, in order of first use."""
        return tuple(dict.fromkeys((*(b.processor for s in self.segments for b in s.branches), *(s.processor for s in self.sides))))


# Checks of an exactly divided segment.


def check_division(segment: Segment, design: SegmentDesign, division: Division) -> None:
    """Refuse a segment unless each branch has one share and the shares cover the segment exactly once."""
    where, word = f"segment `{segment.name}`", division.word
    if design.join not in division.joins:
        raise StretchError(f"{where} has branches of some {word}, which `{design.join}` does not join", 'leave out its "join"')
    if len(design.branches) < 2:
        raise StretchError(f"{where} has one branch, and {word} are divided among two or more", f"leave out its {word} and its join")
    shares = []
    for name, branch in zip(design.names, design.branches, strict=True):
        branch_shares = shares_of(branch)
        if word not in branch_shares:
            reason = f"{where} is divided by {word}, and its branch on {name} does not say which it computes"
            raise StretchError(reason, f"give it {word} = {division.example}")
        others = [divisions()[other].what for other in branch_shares if other != word]
        if others:
            raise StretchError(f"branch `{segment.name}.{name}` computes {division.what} and {others[0]}", "let it compute one of them")
        on = f"branch `{segment.name}.{name}` computes {division.what}"
        if (branch.depth, branch.width, branch.entry) != (segment.depth, segment.width, "none"):
            problem = f"{on}, so it has all {segment.depth} blocks, width {segment.width} and no entry"
            raise StretchError(problem, "leave out its depth, width and entry")
        if branch.rewrites:
            raise StretchError(f"{on} exactly, and rewrites are for whole segments and scaled branches", "leave out its rewrites")
        shares.append(branch_shares[word])
    division.check(segment, design, shares)


def check_ranges(
    where: str, division: Division, names: Sequence[str], shares: Sequence[Share], count: int, what: str, of: str
) -> list[tuple[int, int]]:
    """Return the shares as ranges; refuse ranges that are empty or do not follow each other from 0 to `count`."""
    at, ranges = 0, []
    for name, share in zip(names, shares, strict=True):
        if len(share) != 2 or not all(isinstance(bound, int) for bound in share):
            reason = f"{where} has {division.word} = {list(share)} on {name}, which is no range"
            raise StretchError(reason, f"give it {division.word} = {division.example}")
        start, stop = range_of(share)
        if start != at or stop <= start:
            reason = f"{where} has {what} {start} to {stop} on {name}, where {what} from {at} on are due"
            raise StretchError(reason, f"the branches follow each other from 0 to {count} of {of}, and none is empty")
        ranges.append((start, stop))
        at = stop
    if at != count:
        raise StretchError(f"{where} has branches up to {at} of the {count} {what} of {of}", "let the last branch end there")
    return ranges


# Design files.


def undivided(design: BranchDesign) -> BranchDesign:
    """Return the design with each segment of shared weights undivided on its first processor: the same network and weights."""
    return replace(design, segments=tuple(part.undivided if part.shares_weights else part for part in design.segments))


@with_shares
class BranchDraft(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A branch as a design file states it; `resolve_design` fills in missing fields."""

    processor: str
    depth: Count | None = None
    width: Count | None = None
    entry: EntryKind | None = None
    partition: Count | None = None
    align: Count | None = None
    rewrites: tuple[str, ...] = ()
    dropped: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()


class SegmentDraft(msgspec.Struct, forbid_unknown_fields=True):
    """A segment as a design file states it: named, or bounded by cut points."""

    branches: list[BranchDraft]
    name: str | None = None
    start: str | None = None
    end: str | None = None
    join: JoinKind | None = None


class DesignDraft(msgspec.Struct, forbid_unknown_fields=True):
    """A design file; `resolve_design` turns it into a `BranchDesign`."""

    segments: list[SegmentDraft]
    model: str | None = None
    device: str | None = None
    version: int = DESIGN_VERSION
    sides: list[SideDesign] = []


def load_draft(path: Path) -> DesignDraft:
    """Read a design file."""
    raw = read_toml(path, "design", _EXAMPLE)
    try:
        draft = msgspec.convert(raw, DesignDraft)
    except msgspec.ValidationError as error:
        raise StretchError(f"{path} is not a design: {error}", _EXAMPLE) from error
    if draft.version > DESIGN_VERSION:
        raise StretchError(f"{path} has design version {draft.version}, this nn-stretch reads up to {DESIGN_VERSION}", "upgrade nn-stretch")
    return draft


def design_to_toml(design: BranchDesign) -> str:
    """Return the design as a TOML file that `load_draft` reads back."""
    table: dict[str, Any] = msgspec.to_builtins(design)
    for branch in (branch for segment in table["segments"] for branch in segment["branches"]):
        for word in DIVISION_NAMES:
            if branch[word] is None:
                del branch[word]  # TOML has no null
        for name in ("rewrites", "dropped"):
            if not branch[name]:
                del branch[name]
    if not table["sides"]:
        del table["sides"]
    # TOML needs plain values before tables; the version comes first for readers
    return tomli_w.dumps({"version": table.pop("version"), **table})

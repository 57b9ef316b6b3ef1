"""Ways to divide a segment among branches that together compute exactly what it computes.

A way is a file of `stretch.planning.divisions`. Its name is the word by which a design file says what of
its segment a branch computes, as ``rows = [0, 14]``; its `DIVISION` is a `Division`. Design files, the
search, the timeline, torch modules and reports ask that object and know no way by name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import msgspec

from predictors.errors import StretchError
from predictors.graph import OpGraph
from predictors.predictor import Estimate, LatencyPredictor
from predictors.slices import Channels, weight_rows
from stretch.planning.network.segments import Segment

T = TypeVar("T")

_FOLDER = Path(__file__).parent.parent / "divisions"
#: The order in which ways are tried; others follow by name.
_FIRST = ("rows", "channels", "paths", "ends")

#: Words of all ways: the files of their folder.
_FOUND = [module.name for module in iter_modules([str(_FOLDER)])]
DIVISION_NAMES = tuple(sorted(_FOUND, key=lambda name: (name not in _FIRST, (*_FIRST, name).index(name), name)))

#: Numbers of a design are at most this: more than any network has.
MAX_COUNT = 1 << 24
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
#: Part of a segment that a branch computes: of most ways the first of a range and the one behind its last.
Share = tuple[Count | str, ...]


@dataclass(frozen=True)
class Taken:
    """A branch's part of one operator's weights."""

    channels: Channels  # The output channels that it computes, of which each weight has a row, or a row for several.
    width: int  # Output channels of the whole operator.
    columns: Channels | None = None  # Of a projection, the channels that it reads; None where it reads all that there are.
    zeros: tuple[str, ...] = ()  # Weights that are zero, since another branch has them.

    def rows(self, count: int) -> Channels:
        """Its rows of a weight that has so many in the whole operator."""
        return weight_rows(self.channels, self.width, count)


@dataclass(frozen=True)
class Piece:
    """One branch's part of a segment."""

    graph: OpGraph  # Its operators, called as the segment's.
    taken: Mapping[str, Taken] = field(default_factory=dict)  # Where it has slices of weights, what of each operator's, by name.


class Division:
    """A way to divide a segment; its methods are given segments whose branches all say their shares."""

    word: str  # Its name: that of its file.
    kind: ClassVar[str]  # Word of the request's `kinds` that asks for it; several ways may have the same.
    joins: ClassVar[tuple[str, ...]]  # Exact joins that its branches may meet by.
    what: ClassVar[str]  # Part that one branch computes, in a sentence.
    example: ClassVar[str] = "[first, behind the last]"  # A share, as a person writes it.
    #: Whose the weights of a branch are: each has the ``same``, all of the segment's; ``slices`` of them (`Piece.taken`); or its ``own``,
    #: those of operators that no other branch computes.
    weights: ClassVar[Literal["same", "slices", "own"]] = "own"
    vectors: ClassVar[bool] = False  # Whether it divides vectors, too, so that linear layers are parts of their own.
    halo: ClassVar[bool] = False  # Whether its repeated elements are rows at the borders of branches.

    # a design

    def join(self, segment: Segment) -> str:
        """The join of a design that names none."""
        return self.joins[0]

    def check(self, segment: Segment, design: Any, shares: Sequence[Share]) -> None:
        """Refuse shares that are not the whole segment once; the sentence names the segment and says what would be right."""
        raise NotImplementedError

    def pieces(self, graph: OpGraph, names: Sequence[str], shares: Sequence[Share], join: str) -> list[Piece]:
        """Return the part of a segment that each branch computes; the segment is given in one piece."""
        raise NotImplementedError

    def text(self, share: Share) -> str:
        """A share in a few words."""
        return f"{self.word} {':'.join(map(str, share))}"

    # the timeline

    def input_graph(self, graph: OpGraph, holder: str, processor: str, predictor: LatencyPredictor) -> OpGraph:
        """Return a branch as it runs where a processor holds its input; another graph if the input is cut on the way."""
        return graph

    def repeated_ms(self, whole: OpGraph, pieces: Sequence[tuple[OpGraph, Estimate, float]]) -> float:
        """Time that branches spend on what the segment in one piece computes once, ms; of each its graph, estimate, and contention factor are given."""
        return 0.0

    # the search

    def candidates(self, parts: Any) -> Iterable[tuple[int, Any]]:
        """Ways (`SegmentOptions`) to run parts of a `stretch.planning.search.parts.PartSpace`, and runs of them, each by its first part."""
        raise NotImplementedError

    def divisible_tensors(self, graph: OpGraph) -> Collection[str]:
        """Return how branches may divide a part in this way, in words of `stretch list models --details`."""
        return ()

    def obstacle(self, graph: OpGraph) -> str | None:
        """Why a network, or a part of one, cannot be divided so, if a single reason can be named."""
        return None

    def remark(self, stages: Sequence[Segment]) -> str | None:
        """Return a note for people about stages that cannot be divided so."""
        return None


@cache
def divisions() -> dict[str, Division]:
    """Every way, by its word; files are imported when they are first asked for."""
    result: dict[str, Division] = {}
    for word in DIVISION_NAMES:
        result[word] = import_module(f"stretch.planning.divisions.{word}").DIVISION
        result[word].word = word
    return result


def exact_kinds() -> tuple[str, ...]:
    """Return the words of a request's `kinds` for the ways in this folder."""
    return tuple(dict.fromkeys(division.kind for division in divisions().values()))


def of_kinds(kinds: Collection[str]) -> list[Division]:
    """The ways that a request asks for."""
    return [division for division in divisions().values() if division.kind in kinds]


def with_shares(branch: type[T]) -> type[T]:
    """A class of branches with a field for each way, as files have them; of these at most one is not None."""
    name, namespace = branch.__name__, {"__doc__": branch.__doc__, "__module__": branch.__module__}
    if issubclass(branch, msgspec.Struct):
        fields = [(word, Share | None, None) for word in DIVISION_NAMES]
        struct = msgspec.defstruct(name, fields, bases=(branch,), namespace=namespace, frozen=True, kw_only=True)
        return cast(type[T], struct)  # its stub does not say that the bases are those given
    shares = [(word, Share | None, field(default=None)) for word in DIVISION_NAMES]
    return make_dataclass(name, shares, bases=(branch,), namespace=namespace, frozen=True)


def shares_of(branch: object) -> dict[str, Share]:
    """Return a branch's share, by the word of the way."""
    return {word: share for word in DIVISION_NAMES if (share := getattr(branch, word)) is not None}


def range_of(share: Share) -> tuple[int, int]:
    """A share that is a range, as of a segment that was checked."""
    start, stop = map(int, share)
    return start, stop


def division_of(design: Any) -> Division | None:
    """The way in which a segment is divided; None where it is whole, or its branches are scaled copies."""
    words = {word for branch in design.branches for word in shares_of(branch)}
    named = [division for word, division in divisions().items() if word in words] if words else []
    eligible = [division for division in (named or divisions().values()) if design.join in division.joins]
    return next(iter(eligible or named), None)


def check_division(segment: Segment, design: Any, division: Division) -> None:
    """Refuse a segment whose branches do not compute all of it once, each a share and nothing else."""
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
    """The shares as ranges that follow each other from 0 to a count of something, none of them empty."""
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

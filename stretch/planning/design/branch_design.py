"""The design: where branches meet and how each is scaled (paper 003, table 2)."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomli_w

from predictors.errors import StretchError
from predictors.files import read_toml
from predictors.joins import JoinKind
from stretch.planning.design.division import DIVISION_NAMES, Count, Division, division_of, with_shares
from stretch.planning.network.segments import EntryKind

DESIGN_VERSION = 1

_EXAMPLE = "a design has [[segments]] with name and branches = [{processor, depth, width}, …]"


def safe_name(processor: str) -> str:
    """Return a processor's name as a part of module and operator names: ``cpu[1large]`` → ``on_cpu_1large``, so that no branch hides torch's `Module.cpu`."""
    return "on_" + "".join(c if c.isalnum() else "_" for c in processor).strip("_")


@with_shares
@dataclass(frozen=True)
class BranchScale:
    """One branch of one segment.

    In an exactly divided segment it also states its share, under the name of the division
    (`stretch.planning.design.division`), such as ``rows=(0, 14)``.
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
        return division_of(self)

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

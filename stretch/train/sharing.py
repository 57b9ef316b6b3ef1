"""Which of the shared weights a design uses.

A supernet keeps, for every processor of every segment, one whole copy of the segment's
weights, a 1×1 entry where a design needs one, and a 1×1 join from the full backbone to the
full backbone. A design's branch uses the rows and columns of the channels it keeps. Channels
are ranked once by importance, so that a wider branch keeps all that a narrower one does.
All of it lies in one flat vector: a subnet is a list of positions in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from predictors.errors import StretchError
from predictors.joins import join_of, joins_that
from predictors.operators import kind_of
from stretch.capture import Captured
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, safe_name
from stretch.planning.design.scale import ENTRY_CONV, ENTRY_NORM, JOIN_CONV, ScaledBranch, scaled_branches
from stretch.transform.width import importance, kept_channels

#: Learned tensors of an operator; statistics are each subnet's own.
_LEARNED = ("weight", "bias")


@dataclass
class Offsets:
    """Where each shared tensor lies in the flat vector."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # Shape by name, ``segment.branch.operator.weight``.
    starts: dict[str, int] = field(default_factory=dict)  # First position by name.
    size: int = 0  # Length of the vector.

    def add(self, name: str, shape: tuple[int, ...]) -> None:
        """Give a tensor its place, once."""
        if name not in self.shapes:
            self.shapes[name], self.starts[name] = shape, self.size
            self.size += torch.Size(shape).numel()

    def positions(self, name: str) -> torch.Tensor:
        """Positions of a shared tensor, in its shape."""
        shape = self.shapes[name]
        return (self.starts[name] + torch.arange(torch.Size(shape).numel())).reshape(shape)


class Sharing:
    """The shared weights of a set of designs, and each design's part of them.

    Attributes:
        offsets: In the flat vector.
    """

    def __init__(self, captured: Captured, designs: Sequence[BranchDesign]) -> None:
        self.captured = captured
        self.offsets = Offsets()
        self.joins = _check(designs)
        self._ranks: dict[tuple[str, str], torch.Tensor] = {}
        self._closed = False
        for design in designs:
            self.positions(design)
        self._closed = True

    def positions(self, design: BranchDesign) -> dict[str, torch.Tensor]:
        """Positions in the flat vector by parameter name of a `BranchedModel` of this design, in the parameter's shape."""
        positions_by_name: dict[str, torch.Tensor] = {}
        for part, branches in zip(design.segments, scaled_branches(self.captured.graph, design), strict=True):
            start = 0
            for scale, branch in zip(part.branches, branches, strict=True):
                prefix = f"{part.name}.{safe_name(scale.processor)}."
                for name, positions in self._branch(part, scale, branch, prefix, start).items():
                    positions_by_name[prefix + name] = positions
                start += scale.partition if join_of(part.join).divides else 0
        return positions_by_name

    def _branch(self, part: SegmentDesign, scale: BranchScale, branch: ScaledBranch, prefix: str, start: int) -> dict[str, torch.Tensor]:
        source, channels = branch.source, branch.channels
        chosen = self._chosen(part, scale, branch)
        positions_by_name: dict[str, torch.Tensor] = {}

        def use(name: str, shape: tuple[int, ...], rows: torch.Tensor, columns: torch.Tensor | None = None) -> None:
            if self._closed and prefix + name not in self.offsets.shapes:
                raise StretchError(
                    f"the supernet has no weights `{prefix}{name}`", "it knows the processors and entries of its own designs"
                )
            self.offsets.add(prefix + name, shape)
            positions = self.offsets.positions(prefix + name)[rows]
            positions_by_name[name] = positions if columns is None else positions[:, columns]

        for op in source.ops:
            if op.kind == "input" or op.name not in self.captured.weights:
                continue
            rows = kept_channels(channels, source, op.name, chosen, None).index
            dense = kind_of(op.kind).dense(op.attrs)
            for key, tensor in self.captured.weights[op.name].items():
                if key in _LEARNED:
                    reads = kept_channels(channels, source, op.inputs[0], chosen, None).index if dense and key == "weight" else None
                    use(f"{op.name}.{key}", tuple(tensor.shape), rows, reads)
        full_in, full = self.captured.graph.by_name[part.start].shape[1], self.captured.graph.by_name[part.end].shape[1]
        if scale.entry == "project":
            wanted = kept_channels(channels, source, source.input.name, chosen, None).index
            use(f"{ENTRY_CONV}.weight", (full_in, full_in, 1, 1), wanted)
            for key in _LEARNED:
                use(f"{ENTRY_NORM}.{key}", (full_in,), wanted)
        if join_of(part.join).convolves:
            backbone = kept_channels(channels, source, source.output, chosen, None).index
            rows = torch.arange(start, start + (full if join_of(part.join).whole else scale.partition))
            use(f"{JOIN_CONV}.weight", (full, full, 1, 1), rows, backbone)
            use(f"{JOIN_CONV}.bias", (full,), rows)
        return positions_by_name

    def _chosen(self, part: SegmentDesign, scale: BranchScale, branch: ScaledBranch) -> dict[int, torch.Tensor]:
        """Units each group of a branch keeps, ascending: the first of their rank."""
        source, channels = branch.source, branch.channels
        scores = importance(source, channels, self.captured.weights)
        names: dict[int, str] = {}
        for op in source.ops:
            for group, _ in channels.pieces.get(op.name, ()):
                # A group's first operator is in a block that every depth keeps, or in a unit of its own.
                names.setdefault(group, f"{op.name}:{len([g for g in names.values() if g.startswith(op.name + ':')])}")
        chosen: dict[int, torch.Tensor] = {}
        for group, units in channels.units.items():
            keep = branch.kept[group]
            if keep > units:
                raise StretchError(
                    f"segment `{part.name}` is wider on {scale.processor} than the original, a supernet shares the original's weights",
                    "use designs whose width ratios are at most 1",
                )
            if scale.entry == "slice" and group == channels.input_group:
                chosen[group] = torch.arange(branch.backbone, branch.backbone + keep)
                continue
            key = (f"{part.start}>{part.end}", names.get(group, str(group)))
            if key not in self._ranks:
                score = scores.get(group, torch.zeros(units))
                self._ranks[key] = torch.argsort(score, descending=True, stable=True)
            chosen[group] = torch.sort(self._ranks[key][:keep]).values
        return chosen

    def initial(self) -> torch.Tensor:
        """The flat vector with the original's weights; entries select, joins pass on what a branch kept."""
        flat = torch.zeros(self.offsets.size)
        for name, shape in self.offsets.shapes.items():
            segment, _, op, key = name.split(".")
            if op in (ENTRY_CONV, JOIN_CONV):
                value = torch.zeros(shape)
                if key == "weight":
                    value = (
                        torch.eye(shape[0])[:, :, None, None] / self.joins.get(segment, 1)
                        if op == JOIN_CONV
                        else torch.eye(shape[0])[:, :, None, None]
                    )
            elif op == ENTRY_NORM:
                value = torch.ones(shape) if key == "weight" else torch.zeros(shape)
            else:
                value = self.captured.weights[op][key].detach().float().cpu()
            start = self.offsets.starts[name]
            flat[start : start + value.numel()] = value.flatten()
        return flat


def envelope(designs: Sequence[BranchDesign], pick: "type[max] | type[min]" = max) -> BranchDesign:  # type: ignore[valid-type]
    """The largest design around a set, or with `min` the smallest inside it: per branch the extreme depth and width."""
    first = designs[0]
    parts = []
    for number, part in enumerate(first.segments):
        scales = []
        for index, scale in enumerate(part.branches):
            same_branch = [d.segments[number].branches[index] for d in designs]
            depth, width = pick(b.depth for b in same_branch), pick(b.width for b in same_branch)
            entry = next(b.entry for b in same_branch if b.width == width)
            scales.append(BranchScale(scale.processor, depth, width, entry, scale.partition, scale.align))
        parts.append(SegmentDesign(part.name, part.start, part.end, tuple(scales), part.join))
    return BranchDesign(first.model, first.device, tuple(parts))


def _check(designs: Sequence[BranchDesign]) -> dict[str, int]:
    """Number of branches by segment whose join adds them up."""
    if not designs:
        raise StretchError("a supernet needs at least one design", "name designs, or let the search find some")
    first = designs[0]
    shape = [(p.name, p.start, p.end) for p in first.segments]
    joins: dict[str, int] = {}
    kept = " or ".join(f"`{name}`" for name in joins_that(lambda join: join.convolves))
    for design in designs:
        if [(p.name, p.start, p.end) for p in design.segments] != shape:
            raise StretchError("the designs of a supernet meet at different points", "give them the same segments")
        for part, other in zip(design.segments, first.segments, strict=True):
            if join_of(part.join).exact:
                raise StretchError(
                    f"segment `{part.name}` joins by `{part.join}`: such branches are the original in parts, of which a supernet has no other designs",
                    "let it stay whole in the designs of a supernet",
                )
            if join_of(part.join).widens:
                raise StretchError(
                    f"segment `{part.name}` joins by `{part.join}`, which weights cannot be shared across", f"join by {kept}"
                )
            if part.join != other.join or [b.processor for b in part.branches] != [b.processor for b in other.branches]:
                raise StretchError(
                    f"segment `{part.name}` has other processors or another join in one design than in another",
                    "use one set of processors and one join for each segment",
                )
            if join_of(part.join).adds:
                joins[part.name] = len(part.branches)
    return joins

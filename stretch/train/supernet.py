"""A supernet, many designs that share one set of weights, and the drawing of designs for it."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import nn

from predictors.devices import DeviceProfile
from predictors.errors import InfeasibleError, StretchError
from predictors.graph import OpGraph
from predictors.joins import DEFAULT, join_of, joins_that
from predictors.operators import kind_of
from stretch.network.capture import Captured
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, safe_name
from stretch.planning.design.scale import (
    ENTRY_CONV,
    ENTRY_NORM,
    JOIN_CONV,
    ScaledBranch,
    aligns,
    design_segments,
    legal_widths,
    partitions,
    scaled_branches,
    scaled_graph,
)
from stretch.planning.network.segments import Segment, split_segments
from stretch.planning.plan import plan
from stretch.transform.calibrate import renew_statistics
from stretch.transform.model import BranchedModel
from stretch.transform.width import importance, kept_channels

#: Learned tensors of an operator; each subnet has its own statistics.
_PARAMETERS = ("weight", "bias")


@dataclass
class Offsets:
    """Positions of the shared tensors in the flat vector."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # Shape by name, ``segment.branch.operator.weight``.
    starts: dict[str, int] = field(default_factory=dict)  # First position by name.
    size: int = 0  # Length of the vector.

    def add(self, name: str, shape: tuple[int, ...]) -> None:
        """Assign a position to a tensor, unless it already has one."""
        if name not in self.shapes:
            self.shapes[name], self.starts[name] = shape, self.size
            self.size += torch.Size(shape).numel()

    def positions(self, name: str) -> torch.Tensor:
        """Return the positions of a shared tensor, in its shape."""
        shape = self.shapes[name]
        return (self.starts[name] + torch.arange(torch.Size(shape).numel())).reshape(shape)


class Sharing:
    """The shared weights of a set of designs, and each design's part of them.

    Attributes:
        offsets: Positions in the flat vector.
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
        """Return the positions in the flat vector for each parameter of a `BranchedModel` of this design, in the parameter's shape."""
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
        chosen = self._kept_units(part, scale, branch)
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
                if key in _PARAMETERS:
                    reads = kept_channels(channels, source, op.inputs[0], chosen, None).index if dense and key == "weight" else None
                    use(f"{op.name}.{key}", tuple(tensor.shape), rows, reads)
        full_in, full = self.captured.graph.by_name[part.start].shape[1], self.captured.graph.by_name[part.end].shape[1]
        if scale.entry == "project":
            kept = kept_channels(channels, source, source.input.name, chosen, None).index
            use(f"{ENTRY_CONV}.weight", (full_in, full_in, 1, 1), kept)
            for key in _PARAMETERS:
                use(f"{ENTRY_NORM}.{key}", (full_in,), kept)
        if join_of(part.join).convolves:
            backbone = kept_channels(channels, source, source.output, chosen, None).index
            rows = torch.arange(start, start + (full if join_of(part.join).whole else scale.partition))
            use(f"{JOIN_CONV}.weight", (full, full, 1, 1), rows, backbone)
            use(f"{JOIN_CONV}.bias", (full,), rows)
        return positions_by_name

    def _kept_units(self, part: SegmentDesign, scale: BranchScale, branch: ScaledBranch) -> dict[int, torch.Tensor]:
        """Return the units that each group of a branch keeps, ascending: the first ones by rank."""
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

    def initial(self, *, scratch: bool) -> torch.Tensor:
        """Return the flat vector with the original's weights, or with the initial weights of a new network."""
        flat = torch.zeros(self.offsets.size)
        for name, shape in self.offsets.shapes.items():
            value = _new_weight(name, shape) if scratch else self._inherited(name, shape)
            start = self.offsets.starts[name]
            flat[start : start + value.numel()] = value.flatten()
        return flat

    def _inherited(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the original's weight; for entries and joins, weights that select or pass on the branch's channels."""
        segment, _, op, key = name.split(".")
        if op == ENTRY_NORM:
            return torch.ones(shape) if key == "weight" else torch.zeros(shape)
        if op not in (ENTRY_CONV, JOIN_CONV):
            return self.captured.weights[op][key].detach().float().cpu()
        if key != "weight":
            return torch.zeros(shape)
        return torch.eye(shape[0])[:, :, None, None] / (self.joins.get(segment, 1) if op == JOIN_CONV else 1)


def envelope(designs: Sequence[BranchDesign], pick: Callable[[Iterable[int]], int] = max) -> BranchDesign:
    """Return the largest design around a set, or with `min` the smallest inside it: the extreme depth and width per branch."""
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
    """Check that designs can share weights; return the number of branches by segment whose join adds them."""
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


class Subnet:
    """One design of a supernet: a branched network whose weights are in one vector.

    Attributes:
        model: The network, with its own statistics.
        index: Position of each of its weights in the shared vector, (n,) int64.
        weights: Weights of the network, (n,); the parameters of `model` are views of it.
        gradients: Gathered gradients, (n,).
    """

    def __init__(self, design: BranchDesign, sharing: Sharing, device: torch.device, channels_last: bool) -> None:
        self.design = design
        self.model = BranchedModel(sharing.captured.graph, design).to(device)
        positions = sharing.positions(design)
        names = dict(self.model.named_parameters())
        order = {name: names[name].dim() == 4 and channels_last for name in names}
        flat = [positions[name].permute(0, 2, 3, 1).flatten() if order[name] else positions[name].flatten() for name in names]
        self.index = torch.cat(flat).to(device)
        self.weights = torch.zeros(len(self.index), device=device)
        self.gradients = torch.zeros_like(self.weights)
        self.slots: list[torch.Tensor] = []
        at = 0
        for name, old in names.items():
            where, _, key = name.rpartition(".")
            view = _view(self.weights, at, old.shape, order[name])
            self.slots.append(_view(self.gradients, at, old.shape, order[name]))
            self.model.get_submodule(where).register_parameter(key, nn.Parameter(view))
            at += old.numel()
        self.parameters = list(self.model.parameters())

    @torch.no_grad()
    def load(self, shared: torch.Tensor) -> None:
        """Load the present weights from the shared vector."""
        torch.index_select(shared, 0, self.index, out=self.weights)

    @torch.no_grad()
    def gather(self, gradients: Sequence[torch.Tensor]) -> None:
        """Copy the gradients of its parameters, in order, into `gradients`."""
        torch._foreach_copy_(self.slots, list(gradients))

    @torch.no_grad()
    def add_to(self, shared: torch.Tensor) -> None:
        """Add its gradients to the shared vector's; no position occurs twice, so the order of the sum is fixed."""
        shared[self.index] = shared[self.index] + self.gradients


class Supernet(nn.Module):
    """Weights shared by a pool of designs.

    The first subnet is the envelope of the pool, the largest of each branch; the
    second is the smallest; the designs of the pool follow.

    Attributes:
        flat: Shared weights, the only parameter.
        subnets: Largest, smallest, then one for each design of the pool.
        active: Subnet that `forward` runs.
    """

    def __init__(
        self,
        captured: Captured,
        designs: Sequence[BranchDesign],
        device: torch.device | None = None,
        *,
        scratch: bool = False,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        where = device or torch.device("cpu")
        # before the envelope, which requires equal segments
        _check(designs)
        everything = [envelope(designs, max), envelope(designs, min), *designs]
        self.sharing = Sharing(captured, everything)
        self.flat = nn.Parameter(self.sharing.initial(scratch=scratch).to(where))
        # A tuple, so that their views do not become parameters of the supernet.
        self.subnets = tuple(Subnet(d, self.sharing, where, channels_last) for d in everything)
        self.active = self.subnets[0]
        self._start_statistics(captured, scratch)

    @property
    def pool(self) -> tuple[Subnet, ...]:
        """Subnets of the given designs."""
        return self.subnets[2:]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the active subnet, with the present weights."""
        self.active.load(self.flat)
        scores: torch.Tensor = self.active.model(x)
        return scores

    def train(self, mode: bool = True) -> "Supernet":
        """Set the mode of every subnet."""
        for subnet in self.subnets:
            subnet.model.train(mode)
        return super().train(mode)

    def extract(self, design: BranchDesign, batches: Sequence[torch.Tensor]) -> BranchedModel:
        """Return a stand-alone network of a design, with new batch-norm statistics."""
        if not batches:
            raise StretchError("a subnet needs images for its batch-norm statistics, none were given", "give some hundred training images")
        subnet = Subnet(design, self.sharing, self.flat.device, channels_last=False)
        subnet.load(self.flat)
        model = BranchedModel(self.sharing.captured.graph, design).to(self.flat.device)
        parameters = dict(subnet.model.named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(parameters[name])
            renew_statistics(model, batches)
        return model.eval()

    @torch.no_grad()
    def calibrate(self, batches: Sequence[torch.Tensor]) -> None:
        """Recompute the batch-norm statistics of every subnet.

        Weights do not change: the largest subnet has the original's, and weights that are fitted to one
        design would be wrong for the others that share them.
        """
        for subnet in self.subnets:
            subnet.load(self.flat)
            renew_statistics(subnet.model, batches)

    # torch's method has three overloads; only this form is used
    def state_dict(self, *args: Any, keep_vars: bool = False, **kwargs: Any) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Return the shared weights, and every subnet's statistics as ``subnets.N.NAME``."""
        state = {"flat": self.flat if keep_vars else self.flat.detach()}
        for number, subnet in enumerate(self.subnets):
            state |= {f"subnets.{number}.{name}": value for name, value in subnet.model.named_buffers()}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load the result of `state_dict`; the pool must be the same."""
        current_state = self.state_dict()
        if current_state.keys() != state_dict.keys() or any(current_state[name].shape != state_dict[name].shape for name in current_state):
            raise StretchError("these are the weights of another supernet", "its designs must be the ones it was trained with")
        with torch.no_grad():
            for name, value in current_state.items():
                value.copy_(state_dict[name])

    @torch.no_grad()
    def _start_statistics(self, captured: Captured, scratch: bool) -> None:
        """Give the subnets the original's batch-norm statistics, channel by channel."""
        for subnet in self.subnets:
            subnet.load(self.flat)
            if scratch:
                continue
            positions = self.sharing.positions(subnet.design)
            for name, norm in _norms(subnet.model):
                segment, branch, op = name.split(".")
                if op in captured.weights and f"{name}.weight" in positions:
                    rows = positions[f"{name}.weight"] - self.sharing.offsets.starts[f"{segment}.{branch}.{op}.weight"]
                    norm.running_mean.copy_(captured.weights[op]["running_mean"][rows])
                    norm.running_var.copy_(captured.weights[op]["running_var"][rows])
                else:
                    norm.running_var.fill_(1 - norm.eps)


def _norms(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.track_running_stats:
            yield name, module


def _view(flat: torch.Tensor, start: int, shape: torch.Size, nhwc: bool) -> torch.Tensor:
    piece = flat[start : start + shape.numel()]
    if not nhwc:
        return piece.view(shape)
    out, into, height, width = shape
    return piece.view(out, height, width, into).permute(0, 3, 1, 2)


def _new_weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the initial weight or bias of a new convolution, classifier or batch norm."""
    value = torch.zeros(shape)
    if len(shape) == 4:
        nn.init.kaiming_normal_(value, mode="fan_out", nonlinearity="relu")
    elif len(shape) == 2:
        nn.init.normal_(value, std=0.01)
    elif name.endswith(".weight"):
        value.fill_(1.0)
    return value


#: Maximum number of drawn designs.
_MAX_TRIES = 20_000
#: Number of draws without any design in range after which drawing stops.
_HOPELESS = 1_000
#: Minimum depth and width of a drawn branch, relative to its segment's.
_LEAST = 0.25
#: Number of slices of the range of multiply-accumulates per requested design, because some slices have no design.
_SLICES = 3


def random_designs(
    graph: OpGraph,
    profile: DeviceProfile,
    processors: tuple[str, ...],
    count: int,
    macs: tuple[float, float],
    *,
    seed: int = 0,
) -> list[BranchDesign]:
    """Draw distinct designs that branch every stage over the same processors with the planner's default join."""
    processors = processors or profile.default_processors
    align = aligns(profile, processors)
    draw = random.Random(seed)
    stages = split_segments(graph)
    widths = {(s.name, p): legal_widths(s, align[p], _LEAST) for s in stages if s.branchable for p in processors}

    def part(stage: Segment) -> SegmentDesign:
        if not stage.branchable or stage.width < len(processors):
            first = processors[0]
            return SegmentDesign(stage.name, stage.start, stage.end, (BranchScale(first, stage.depth, stage.width, align=align[first]),))
        shallowest = max(stage.min_depth, round(_LEAST * stage.depth))
        scales = [(p, draw.randint(shallowest, stage.depth), draw.choice(widths[stage.name, p]), align[p]) for p in processors]
        return _branched_segment(stage, scales, DEFAULT)

    return _distinct(graph, lambda: BranchDesign(graph.name, profile.id, tuple(part(s) for s in stages)), count, macs)


def designs_between(
    graph: OpGraph, pool: Sequence[BranchDesign], count: int, macs: tuple[float, float], *, seed: int = 0
) -> list[BranchDesign]:
    """Draw distinct designs whose branches are between the smallest and the largest of a pool."""
    draw = random.Random(seed)
    smallest, largest = envelope(pool, min), envelope(pool, max)
    stages = design_segments(graph, largest)

    def part(stage: Segment, low: SegmentDesign, high: SegmentDesign) -> SegmentDesign:
        if high.whole:
            return high
        scales = []
        for a, b in zip(low.branches, high.branches, strict=True):
            widths = [w for w in legal_widths(stage, b.align) if a.width <= w <= b.width] or [b.width]
            scales.append((b.processor, draw.randint(a.depth, b.depth), draw.choice(widths), b.align))
        return _branched_segment(stage, scales, high.join)

    def one() -> BranchDesign:
        parts = [part(*arguments) for arguments in zip(stages, smallest.segments, largest.segments, strict=True)]
        return BranchDesign(largest.model, largest.device, tuple(parts))

    return _distinct(graph, one, count, macs)


def fastest_designs(
    graph: OpGraph, profile: DeviceProfile, config: PlanConfig, count: int, macs: tuple[float, float]
) -> list[BranchDesign]:
    """Return the planner's fastest designs, one per slice of the range of multiply-accumulates.

    The fastest designs of the whole range differ in a few channels; one per slice
    gives a pool of sufficiently different members. All have the same meeting points
    and processors, as a supernet's designs must.
    """
    makespans: dict[BranchDesign, float] = {}
    step = (macs[1] - macs[0]) / (_SLICES * count)
    shape = None
    refused: InfeasibleError | None = None
    for number in range(_SLICES * count):
        part = (macs[0] + number * step, macs[0] + (number + 1) * step)
        try:
            result = plan(graph, profile, msgspec.structs.replace(config, macs=part))
        except InfeasibleError as error:
            refused = error
            continue
        placements = [(s.start, s.end, s.join, [b.processor for b in s.branches]) for s in result.design.segments]
        shape = shape or placements
        if placements == shape:
            makespans[result.design] = result.run.makespan_ms
    if not makespans and refused is not None:
        raise refused
    if len(makespans) < count:
        raise InfeasibleError(
            f"the planner finds {len(makespans)} of {count} designs with {macs[0]:g} to {macs[1]:g} of the original's MACs",
            "widen supernet.macs, ask for fewer, or draw at random",
        )
    return sorted(makespans, key=lambda design: makespans[design])[:count]


def _distinct(graph: OpGraph, one: Callable[[], BranchDesign], count: int, macs: tuple[float, float]) -> list[BranchDesign]:
    """Draw distinct designs within a range of multiply-accumulates."""
    designs: dict[BranchDesign, None] = {}
    drawn: set[BranchDesign] = set()
    nearest = math.inf
    for tried in range(_MAX_TRIES):
        if len(designs) == count:
            return list(designs)
        if tried == _HOPELESS and not designs:
            break
        design = one()
        if design in drawn:
            continue
        drawn.add(design)
        ratio = scaled_graph(graph, design).macs / graph.macs
        nearest = min(nearest, ratio, key=lambda r: max(macs[0] - r, r - macs[1]))
        if macs[0] <= ratio <= macs[1]:
            designs[design] = None
    raise InfeasibleError(
        f"only {len(designs)} of {count} designs have {macs[0]:g} to {macs[1]:g} of the original's MACs",
        "widen supernet.macs" + (f", the nearest design drawn has {nearest:.3f}" if not designs else "") + "; or name designs",
    )


def _branched_segment(stage: Segment, scales: Sequence[tuple[str, int, int, int]], join: str) -> SegmentDesign:
    """Return a segment with branches of these (processor, depth, width, align)."""
    shares = [0] * len(scales)
    if join_of(join).divides:
        shares = list(partitions(stage.width, [width for _, _, width, _ in scales], max(align for *_, align in scales)))
    branches = tuple(
        BranchScale(processor, depth, width, stage.entry(width, stage.in_width), share, align)
        for (processor, depth, width, align), share in zip(scales, shares, strict=True)
    )
    return SegmentDesign(stage.name, stage.start, stage.end, branches, join)

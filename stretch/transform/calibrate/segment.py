"""Calibration of one segment: several fits, and the choice between them on images that none of them saw."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from predictors.joins import join_of
from stretch.capture import Captured
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.design.scale import JOIN_CONV
from stretch.planning.network.segments import Segment
from stretch.transform.build import load_weights
from stretch.transform.calibrate.joins import fit_join, readout
from stretch.transform.calibrate.layers import BranchFit, Look, look
from stretch.transform.calibrate.match import Matches, candidate_matches
from stretch.transform.calibrate.pixels import pixels_for, rows_of
from stretch.transform.calibrate.refine import refine
from stretch.transform.calibrate.split import Split
from stretch.transform.calibrate.statistics import rebase_statistics, renewed_trunk
from stretch.transform.calibrate.walk import Batches, trunk_of
from stretch.transform.model import Branch, BranchedSegment
from stretch.transform.width import Heritage

#: A smaller error than this is rounding: the segment computes what the original does.
_SAME = 1e-9

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Trunk:
    """What a join and its error need of a branch.

    Args:
        rows: Pixels before the join of the images that fits look at, (rows, channels).
        held: All that is before the join of the images for the choice, in batches.
    """

    rows: torch.Tensor
    held: Batches


@dataclass
class Job:
    """One segment: what is fitted, to what.

    Args:
        captured: The original network.
        part: The segment's design.
        original: The original segment.
        family: What each branch keeps of it.
        segment: The branched segment; changed in place.
        whole: The original segment as a module.
        arriving: Batches of what arrives at the branched segment.
        there: Batches of what arrives at the original.
        split: Which batches are for fits, which for the choice.
        ridge: Relative weight of the regressions' penalty.

    Attributes:
        targets: What the original computes, once `calibrate` is done.
        outputs: What the calibrated segment computes.
    """

    captured: Captured
    part: SegmentDesign
    original: Segment
    family: list[Heritage]
    segment: BranchedSegment
    whole: Branch
    arriving: Batches
    there: Batches
    split: Split
    ridge: float
    targets: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    def calibrate(self, layers: bool, refine_steps: int) -> tuple[float, float]:
        """Keep what is best on the images for the choice, the segment as it was built among it.

        Args:
            layers: Whether layers are fitted, not statistics and joins alone.
            refine_steps: Steps of Adam afterwards; 0 for none.

        Returns:
            The errors as built and in the end.
        """
        branches = self._branches()
        ways = candidate_matches(self.original, [h.branch.source for h in self.family]) if layers else []
        fits = [
            [(m, BranchFit(heritage, branch, m, self.split.images)) for m in _distinct(way[i] for way in ways)]
            for i, (heritage, branch) in enumerate(zip(self.family, branches, strict=True))
        ]
        looks = {one for branch in fits for _, fit in branch for one in fit.looks}
        self.targets, found = look(self.whole, self.there, self.split.fitted, looks)
        # A join reads all branches: no regression of it has more inputs.
        joined = sum(h.branch.graph.by_name[_trunk_name(h, branch)].shape[1] for h, branch in zip(self.family, branches, strict=True))
        self._count = pixels_for(self.split.images, joined)
        self._wanted = torch.cat([rows_of(y, self._count) for y in self.targets[: self.split.fitted]])
        before = least = self._error(self._trunks(branches))
        if before <= _SAME:
            self.outputs = [self.segment(x) for x in self.arriving]
            return before, before
        best = _state(self.segment)

        def offer(trunks: Sequence[Trunk]) -> None:
            nonlocal best, least
            error = self._error(trunks)
            if error < least:
                best, least = _state(self.segment), error

        renewed = [self._trunk(renewed_trunk(branch, self.arriving, self.split.fitted)) for branch in branches]
        start = [_state(branch) for branch in branches]
        self._fit_join(renewed)
        offer(renewed)
        done = [
            [(m, *self._fit(branch, state, heritage, m, fit, found)) for m, fit in own]
            for branch, state, heritage, own in zip(branches, start, self.family, fits, strict=True)
        ]
        for way in ways:
            trunks = []
            for branch, own, matches in zip(branches, done, way, strict=True):
                state, trunk = next((state, trunk) for m, state, trunk in own if m == matches)
                branch.load_state_dict(state)
                trunks.append(trunk)
            self._fit_join(trunks)
            offer(trunks)
        self.segment.load_state_dict(best)
        if refine_steps:
            fitted = self.split.fitted
            refine(self.segment, self.arriving[:fitted], self.targets[:fitted], refine_steps, self._reader(self._trunks(branches)))
            offer(self._trunks(branches))
            self.segment.load_state_dict(best)
        self.outputs = rebase_statistics(self.segment, self.arriving)
        return before, least

    def _branches(self) -> list[Branch]:
        return [branch for branch in self.segment.children() if isinstance(branch, Branch)]

    def _fit(
        self, branch: Branch, start: State, heritage: Heritage, matches: Matches, fit: BranchFit, found: Mapping[Look, Batches]
    ) -> tuple[State, Trunk]:
        branch.load_state_dict(start)
        for name, weights in heritage.weights(self.captured, matches).items() if matches else ():
            if name in matches:
                load_weights(branch.get_submodule(name), weights)
        trunk = self._trunk(fit.run(self.arriving, self.split.fitted, found, self.ridge))
        return _state(branch), trunk

    def _fit_join(self, trunks: Sequence[Trunk]) -> None:
        fit_join(self.part, self.segment, [trunk.rows for trunk in trunks], self._wanted, self.ridge)

    def _trunk(self, batches: Batches) -> Trunk:
        return Trunk(torch.cat([rows_of(x, self._count) for x in batches[: self.split.fitted]]), batches[self.split.held :])

    def _trunks(self, branches: list[Branch]) -> list[Trunk]:
        """Trunks of the branches as they are; rows only where the error needs them."""
        if join_of(self.part.join).widens:
            return [self._trunk([trunk_of(branch, x) for x in self.arriving]) for branch in branches]
        none = torch.empty(0)
        return [Trunk(none, [trunk_of(branch, x) for x in self.arriving[self.split.held :]]) for branch in branches]

    def _reader(self, trunks: Sequence[Trunk]) -> Callable[[torch.Tensor], torch.Tensor]:
        """Makes the segment's output comparable with the original's."""
        if not join_of(self.part.join).widens:
            return lambda output: output
        weight, bias = readout(torch.cat([trunk.rows for trunk in trunks], 1), self._wanted, self.ridge)
        return lambda output: torch.einsum("oc,nc...->no...", weight, output) + bias.reshape(-1, *[1] * (output.dim() - 2))

    def _error(self, trunks: Sequence[Trunk]) -> float:
        """Squared error over the square of the original's output, for the images of the choice."""
        wrong = total = 0.0
        read = self._reader(trunks)
        joins = [branch.get_submodule(JOIN_CONV) if hasattr(branch, JOIN_CONV) else None for branch in self._branches()]
        for number, target in enumerate(self.targets[self.split.held :]):
            parts = [join(t.held[number]) if join else t.held[number] for join, t in zip(joins, trunks, strict=True)]
            output = self.segment.join(*parts) if len(parts) > 1 else parts[0]
            wrong += float((read(output) - target).square().sum(dtype=torch.float64))
            total += float(target.square().sum(dtype=torch.float64))
        return wrong / total if total > 0 else wrong


def _trunk_name(heritage: Heritage, branch: Branch) -> str:
    """The operator that a branch's join reads, or its last."""
    return next((reads[0] for name, reads, _ in branch.steps if name == JOIN_CONV), heritage.branch.graph.output)


def _distinct(matches: Iterable[Matches]) -> list[Matches]:
    found: list[Matches] = []
    for one in matches:
        if one not in found:
            found.append(one)
    return found


def _state(module: torch.nn.Module) -> State:
    return {key: value.clone() for key, value in module.state_dict().items()}

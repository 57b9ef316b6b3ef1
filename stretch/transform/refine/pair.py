"""Comparison of a branched network with its original, segment by segment."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from predictors.joins import join_of
from stretch.capture import Captured
from stretch.planning.design.scale import design_segments
from stretch.transform.build import build
from stretch.transform.calibrate.run import whole_design
from stretch.transform.calibrate.statistics import norms, renew_statistics
from stretch.transform.model import TRUNK, BranchedModel

#: Share of the numbers that reach a segment refined by itself which are the original's (Wei et al. 2022, QDrop).
DROPPED = 0.5


@dataclass(frozen=True)
class Stage:
    """One segment of both networks."""

    end: str  # The tensor at its end.
    branched: nn.Module
    original: nn.Module  # The original's.


@dataclass
class Errors:
    """Squared errors over squares of one batch, each a scalar."""

    #: Of segments, in order, where both networks have as many channels; the outputs are the last, of several their mean.
    meeting: list[torch.Tensor] = field(default_factory=list)
    #: Of what the classifier reads; None where there is none, or it reads other channels than the original's.
    features: torch.Tensor | None = None

    def loss(self, apart: bool) -> torch.Tensor:
        """Their sum if each segment answers for its own error; else meeting points count together as much as outputs, or features.

        Features are what few images are best matched by (Wang and Wu 2023, "Practical network acceleration with tiny sets").
        """
        *inner, output = self.meeting
        ends = output if self.features is None else output + self.features
        if not inner:
            return ends
        together = torch.stack(inner)
        return ends + (together.sum() if apart else together.mean())


class Pair:
    """The segments of a branched network that differ from the original's, or come behind one that does, and what lies beside them.

    Args:
        model: The branched network.
        captured: The original.

    Attributes:
        parameters: Weights of those segments, and of the parts that read what they write.
        norms: Their batch-norms, but for those of segments in bands or channels, whose branches see parts of an image.
    """

    def __init__(self, model: BranchedModel, captured: Captured) -> None:
        original = build(captured, whole_design(captured, model.design)).to(next(model.parameters()).device)
        stages = [Stage(part.end, model.get_submodule(part.name), original.get_submodule(part.name)) for part in model.design.segments]
        same = _same(model, captured)
        self._branched, self._original = model, original
        self._before, self._stages = stages[:same], stages[same:]
        modules = [*(stage.branched for stage in self._stages), *(model.after if self._stages else ())]
        self.parameters = list(dict.fromkeys(p for module in modules for p in module.parameters()))
        self._scaled = [not join_of(part.join).shares for part in model.design.segments[same:]]
        self.norms = [norm for stage, scaled in zip(self._stages, self._scaled, strict=True) if scaled for norm in norms(stage.branched)]

    def errors(self, x: torch.Tensor, apart: bool, generator: torch.Generator) -> Errors:
        """Errors of the branched network on a batch.

        Args:
            x: What both read, (n, channels, height, width).
            apart: Whether each segment is judged by itself: it reads what arrives, in part the original's, and
                no gradient goes back to those before it.
            generator: Decides which part; of the device of `x`.
        """
        theirs = self._arriving(x)
        ours = dict(theirs)
        here = there = theirs[TRUNK]
        measured = Errors()
        for stage in self._stages:
            if apart and here.shape == there.shape:
                chosen = torch.rand(here.shape, generator=generator, device=here.device) < DROPPED
                here = torch.where(chosen, there, here.detach())
            with _Reading(stage.branched) as reading:
                here = ours[stage.end] = stage.branched(here)
            with torch.no_grad(), _Reading(stage.original) as original:
                there = theirs[stage.end] = stage.original(there)
            if here.shape == there.shape:
                measured.meeting.append(relative_error(here, there))
        if not self._chain:
            with torch.no_grad():
                wanted = self._results(self._original, theirs)
            measured.meeting.append(mean_error(self._results(self._branched, ours), wanted))
            return measured
        if reading.value is not None and original.value is not None and reading.value.shape == original.value.shape:
            measured.features = relative_error(reading.value, original.value)
        return measured

    @torch.no_grad()
    def outputs(self, images: torch.Tensor, batch: int, *, original: bool) -> list[torch.Tensor]:
        """Outputs of one of the networks, each (n, …).

        Args:
            images: What it reads, (n, channels, height, width).
        """
        results = []
        for x in images.split(batch):
            values = self._arriving(x)
            value = values[TRUNK]
            for stage in self._stages:
                value = values[stage.end] = (stage.original if original else stage.branched)(value)
            results.append([value] if self._chain else self._results(self._original if original else self._branched, values))
        return [torch.cat(parts) for parts in zip(*results, strict=True)]

    @torch.no_grad()
    def renew(self, images: torch.Tensor, batch: int) -> None:
        """Take the statistics of `norms` anew, each from what reaches it when those of the segments before are renewed."""
        arriving = [self._arriving(x)[TRUNK] for x in images.split(batch)]
        for stage, scaled in zip(self._stages, self._scaled, strict=True):
            if scaled:
                renew_statistics(stage.branched, arriving)
            arriving = [stage.branched(x) for x in arriving]

    @property
    def _chain(self) -> bool:
        """Whether the end of the last segment is all that the network returns."""
        return not self._branched.sides and len(self._branched.original_outputs) == 1

    @torch.no_grad()
    def _arriving(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """What both networks have where the first segment begins that differs, by name; `TRUNK` is what that reads."""
        values = self._original.beginning([x])
        value = values.pop(TRUNK)
        for stage in self._before:
            value = stage.original(value)
            if not self._chain:
                values[stage.end] = value
        return values | {TRUNK: value}

    def _results(self, model: BranchedModel, values: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of one of the networks, from the ends of its segments."""
        tensors = model.ending(values)
        return [tensors[name] for name in model.original_outputs]


def relative_error(branched: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """Squared error over square, a scalar."""
    return (branched.float() - original.float()).square().sum() / original.float().square().sum().clamp_min(1e-12)


def mean_error(branched: Sequence[torch.Tensor], original: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean of the errors of several outputs, each of which counts alike, however large its numbers are."""
    return torch.stack([relative_error(a, b) for a, b in zip(branched, original, strict=True)]).mean()


class _Reading:
    """Records the input of the last linear layer of a segment: in the last segment the classifier's features.

    Attributes:
        value: That; None where the segment has no such layer.
    """

    def __init__(self, segment: nn.Module) -> None:
        self.value: torch.Tensor | None = None
        self._layer = next((layer for layer in reversed(list(segment.modules())) if isinstance(layer, nn.Linear)), None)

    def __enter__(self) -> "_Reading":
        if self._layer is not None:
            self._handle = self._layer.register_forward_pre_hook(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._layer is not None:
            self._handle.remove()

    def _note(self, layer: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        self.value = inputs[0]


def _same(model: BranchedModel, captured: Captured) -> int:
    """Segments at the beginning that compute exactly what the original's do."""
    segments = design_segments(captured.graph, model.design)
    for number, (part, segment) in enumerate(zip(model.design.segments, segments, strict=True)):
        scaled = any((b.depth, b.width, b.entry) != (segment.depth, segment.width, "none") for b in part.branches)
        if scaled or (not part.whole and not join_of(part.join).exact):
            return number
    return len(segments)

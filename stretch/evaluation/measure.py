"""A bundle's classes against labels and against the original's, image by image."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from stretch.evaluation.shares import LONG, AgreementSums, Share, best_classes, share_of
from stretch.quantize.images import fingerprint

Array = NDArray[Any]
Net = Callable[[Array], Array]


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of a network."""

    top1: Share | None  # Share whose best class is right; None without labels.
    top5: Share | None  # Share with the right class among the five best; None without labels, or with five classes or fewer.


@dataclass
class _Right:
    """Images with labels, and how many of them are answered rightly."""

    labelled: int = 0
    top1: float = 0
    top5: float = 0

    def add(self, scores: Array, label: int | None) -> None:
        if label is not None:
            best = best_classes(scores.reshape(1, -1))[0].tolist()
            self.labelled += 1
            self.top1 += best[0] == label
            self.top5 += label in best

    def accuracy(self, outputs: int) -> Accuracy:
        n = self.labelled
        return Accuracy(top1=share_of(self.top1, n) if n else None, top5=share_of(self.top5, n) if n and outputs > LONG else None)


@dataclass
class Evaluation:
    """Sums over images; its properties are what they come to."""

    outputs: int  # Outputs of the network.
    compared: bool  # Whether there is an original to compare with.
    images: int = 0  # Images so far.
    sums: AgreementSums = field(default_factory=AgreementSums)
    _branched: _Right = field(default_factory=_Right)
    _original: _Right = field(default_factory=_Right)
    calibrated_on: int = 0  # Images that the bundle was calibrated with.

    def add(self, scores: Array, original: Array | None, label: int | None) -> None:
        """Count one image, from scores of (1, outputs) or (outputs,) of both networks, and its class."""
        self.images += 1
        self._branched.add(scores, label)
        if original is not None:
            self._original.add(original, label)
            self.sums.add(scores.reshape(1, -1), original.reshape(1, -1))

    @property
    def branched(self) -> Accuracy:
        """The bundle's."""
        return self._branched.accuracy(self.outputs)

    @property
    def original(self) -> Accuracy | None:
        """The original's; None where there is none."""
        return self._original.accuracy(self.outputs) if self.compared else None

    @property
    def agreement(self) -> Share | None:
        """Share with the same best class as the original; None where there is none, or it answers nearly always the same class."""
        return share_of(self.sums.same, self.images) if self.sums.diverse else None

    @property
    def top5_overlap(self) -> Share | None:
        """Share of the five best classes that both have; None where there is no agreement, or with five classes or fewer."""
        return share_of(self.sums.shared, self.images) if self.sums.diverse and self.outputs > LONG else None

    @property
    def error(self) -> float | None:
        """Root of the squared error of the outputs over the root of the original's square; None where there is no original."""
        return self.sums.error if self.compared and self.images else None


def evaluate(
    branched: Net,
    original: Net | None,
    images: Iterable[tuple[str, Array, int | None]],
    outputs: int,
    calibrated_on: Collection[str] = (),
) -> Evaluation:
    """Run a bundle, and the original beside it, on images.

    Args:
        original: What it is compared with; None if there is nothing.
        images: Name, input and label of each image; labels may be None.
    """
    evaluation = Evaluation(outputs, original is not None)
    for name, x, label in images:
        scores = branched(x)
        theirs = None if original is None else original(x)
        for what, output in (("the bundle", scores), ("the original", theirs)):
            if output is not None and not np.isfinite(output).all():
                raise StretchError(f"the output of {what} for {name} contains NaN or infinity", "check the bundle with `stretch run`")
        evaluation.add(scores, theirs, label)
        evaluation.calibrated_on += bool(calibrated_on) and fingerprint(x) in calibrated_on
    return evaluation

"""A bundle's classes against labels and against the original's, image by image."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from stretch.evaluation.shares import ALIKE, Share, most_frequent, share_of
from stretch.quantize.images import fingerprint

Array = NDArray[Any]
Net = Callable[[Array], Array]

#: Classes of the longer list.
LONG = 5


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of a network."""

    top1: Share | None  # Share whose best class is right; None without labels.
    top5: Share | None  # Share with the right class among the five best; None without labels, or with five classes or fewer.


@dataclass
class _Sums:
    """Sums over images."""

    images: int = 0
    labelled: int = 0
    top1: float = 0
    top5: float = 0


@dataclass
class Evaluation:
    """Sums over images; its properties are what they come to."""

    outputs: int  # Outputs of the network.
    compared: bool  # Whether there is an original to compare with.
    images: int = 0  # Images so far.
    _branched: _Sums = field(default_factory=_Sums)
    _original: _Sums = field(default_factory=_Sums)
    _agree: float = 0
    _overlap: float = 0
    _wrong: float = 0
    _total: float = 0
    classes: Counter[int] = field(default_factory=Counter)  # Images by the class that the original answers.
    calibrated_on: int = 0  # Images that the bundle was calibrated with.

    def add(self, scores: Array, original: Array | None, label: int | None) -> None:
        """Count one image.

        Args:
            scores: The bundle's output, (1, outputs) or (outputs,).
            original: The original's, or None.
            label: Its class, or None.
        """
        self.images += 1
        best = _best(scores)
        _count(self._branched, best, label)
        if original is None:
            return
        theirs = _best(original)
        self.classes[theirs[0]] += 1
        _count(self._original, theirs, label)
        self._agree += best[0] == theirs[0]
        self._overlap += len(set(best) & set(theirs)) / LONG
        self._wrong += float(np.square(scores.astype(np.float64) - original).sum())
        self._total += float(np.square(original.astype(np.float64)).sum())

    @property
    def branched(self) -> Accuracy:
        """The bundle's."""
        return _accuracy(self._branched, self.outputs)

    @property
    def original(self) -> Accuracy | None:
        """The original's; None where there is none."""
        return _accuracy(self._original, self.outputs) if self.compared else None

    @property
    def agreement(self) -> Share | None:
        """Share with the same best class as the original; None where there is none, or it answers nearly always the same class."""
        return share_of(self._agree, self.images) if self.diverse else None

    @property
    def diverse(self) -> bool:
        """Whether there is an original whose answers differ from image to image, so that agreement says something."""
        return bool(self.classes) and most_frequent(self.classes) < ALIKE

    @property
    def top5_overlap(self) -> Share | None:
        """Share of the five best classes that both have; None where there is no agreement, or with five classes or fewer."""
        return share_of(self._overlap, self.images) if self.diverse and self.outputs > LONG else None

    @property
    def error(self) -> float | None:
        """Root of the squared error of the outputs over the root of the original's square; None where there is no original."""
        if not self.compared or not self.images:
            return None
        return math.sqrt(self._wrong / self._total) if self._total else float(self._wrong > 0)


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


def _best(scores: Array) -> list[int]:
    """The best classes, best first; of equal scores the class that comes first."""
    return [int(i) for i in np.argsort(-scores.ravel(), kind="stable")[:LONG]]


def _count(sums: _Sums, best: list[int], label: int | None) -> None:
    sums.images += 1
    if label is not None:
        sums.labelled += 1
        sums.top1 += best[0] == label
        sums.top5 += label in best


def _accuracy(sums: _Sums, outputs: int) -> Accuracy:
    n = sums.labelled
    return Accuracy(top1=share_of(sums.top1, n) if n else None, top5=share_of(sums.top5, n) if n and outputs > LONG else None)

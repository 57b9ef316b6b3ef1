"""Accuracy and agreement of a bundle on images, and the answer with both."""

import csv
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from scheduler.answer import PlacedProcessor
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import WeightsInfo
from scheduler.bundle.preprocessing import Preprocessing
from scheduler.progress import Progress
from stretch.export.quantize.images import ARRAYS, PICTURES, fingerprint, read_images

Array = NDArray[Any]

#: Number of best classes that are compared.
LONG = 5

#: 97.5 % quantile of the normal distribution.
Z = 1.959963984540054

#: If a network answers one class for at least this share of the images, a network that always answers this class agrees as often. Agreement
#: then has no meaning and is not given.
MAX_CLASS_SHARE = 0.9


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share of images with its 95 % interval."""

    value: float  # Sum of the images' contributions over the number of images.
    low: float  # Lower end of the interval.
    high: float  # Upper end of the interval.
    images: int  # Number of images.


def most_frequent(classes: Mapping[int, int]) -> float:
    """Return the share of images with a network's most frequent class; 0 without images."""
    return max(classes.values(), default=0) / max(1, sum(classes.values()))


def one_sided_reason(classes: Mapping[int, int]) -> str:
    """Return the reason, for messages, why no agreement is given."""
    several = f"{len(classes)} classes" if len(classes) != 1 else "one class"
    return (
        f"the original answers {several} for {sum(classes.values())} images, {most_frequent(classes):.0%} of them alike: agreement is not "
        f"given where one class has {MAX_CLASS_SHARE:.0%} or more"
    )


def share_of(total: float, images: int) -> Share:
    """Return a share with Wilson's score interval (1927), which stays between 0 and 1 and also covers small counts.

    If an image may count in part, as in the overlap of two lists, the
    interval is wider than necessary. A number between 0 and 1 varies no
    more than a binary one with the same mean.
    """
    n, p = images, total / images
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return Share(value=p, low=max(0.0, min(p, centre - half)), high=min(1.0, max(p, centre + half)), images=n)


@dataclass
class AgreementSums:
    """Sums over images for the comparison of two networks."""

    images: int = 0
    same: float = 0.0  # Number of images with the same best class.
    shared: float = 0.0  # Sum of the shares of common classes among the five best.
    wrong: float = 0.0  # Sum of squared errors.
    total: float = 0.0  # Sum of the original's squared outputs.
    classes: Counter[int] = field(default_factory=Counter)  # Number of images by the original's class; empty without class scores.

    def add(self, outputs: Array, originals: Array) -> None:
        """Count a batch of outputs, (images, …)."""
        self.images += len(originals)
        self.wrong += float(np.square(outputs.astype(np.float64) - originals).sum())
        self.total += float(np.square(originals.astype(np.float64)).sum())
        if ranks(originals):
            classes, original_classes = best_classes(outputs), best_classes(originals)
            self.same += float((classes[:, 0] == original_classes[:, 0]).sum())
            self.shared += float((classes[:, :, None] == original_classes[:, None, :]).sum()) / LONG
            self.classes.update(original_classes[:, 0].tolist())

    @property
    def diverse(self) -> bool:
        """Whether the original's answers vary enough for a meaningful agreement."""
        return bool(self.classes) and most_frequent(self.classes) < MAX_CLASS_SHARE

    @property
    def error(self) -> float:
        """Root of the squared error over the root of the original's square."""
        return math.sqrt(self.wrong / self.total) if self.total else float(self.wrong > 0)


def ranks(output: Any) -> bool:
    """Return whether an output, (images, …), is a list of class scores."""
    return len(output.shape) == 2 and output.shape[1] > 1


def best_classes(scores: Array) -> NDArray[np.intp]:
    """Return the best classes of each image, best first; equal scores are ordered by class."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :LONG]


Net = Callable[[Array], Array]


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of a network."""

    top1: Share | None  # Share of images whose best class is right; None without labels.
    top5: Share | None  # Share of images with the right class among the five best; None without labels, or with five classes or fewer.


@dataclass
class _CorrectAnswers:
    """Numbers of labelled images and of right answers."""

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
    """Sums over images; its properties are the results."""

    outputs: int  # Number of outputs of the network.
    compared: bool  # Whether there is an original for comparison.
    images: int = 0  # Number of images so far.
    sums: AgreementSums = field(default_factory=AgreementSums)
    _branched: _CorrectAnswers = field(default_factory=_CorrectAnswers)
    _original: _CorrectAnswers = field(default_factory=_CorrectAnswers)
    calibrated_on: int = 0  # Number of images that were used for the bundle's calibration.

    def add(self, scores: Array, original: Array | None, label: int | None) -> None:
        """Count one image by both networks' scores, (1, outputs) or (outputs,), and its class."""
        self.images += 1
        self._branched.add(scores, label)
        if original is not None:
            self._original.add(original, label)
            self.sums.add(scores.reshape(1, -1), original.reshape(1, -1))

    @property
    def branched(self) -> Accuracy:
        """Accuracy of the bundle."""
        return self._branched.accuracy(self.outputs)

    @property
    def original(self) -> Accuracy | None:
        """Accuracy of the original; None without an original."""
        return self._original.accuracy(self.outputs) if self.compared else None

    @property
    def agreement(self) -> Share | None:
        """Share of images with the same best class as the original; None without an original, or if it nearly always answers one class."""
        return share_of(self.sums.same, self.images) if self.sums.diverse else None

    @property
    def top5_overlap(self) -> Share | None:
        """Share of common classes among the five best; None without an agreement, or with five classes or fewer."""
        return share_of(self.sums.shared, self.images) if self.sums.diverse and self.outputs > LONG else None

    @property
    def error(self) -> float | None:
        """Root of the squared error of the outputs over the root of the original's square; None without an original."""
        return self.sums.error if self.compared and self.images else None


def evaluate(
    branched: Net,
    original: Net | None,
    images: Iterable[tuple[str, Array, int | None]],
    outputs: int,
    calibrated_on: Collection[str] = (),
) -> Evaluation:
    """Run a bundle and the original on images.

    Args:
        original: Network for comparison; None for none.
        images: Name, input and label of each image; labels may be None.
    """
    evaluation = Evaluation(outputs, original is not None)
    for name, x, label in images:
        scores = branched(x)
        original_outputs = None if original is None else original(x)
        for source, output in (("the bundle", scores), ("the original", original_outputs)):
            if output is not None and not np.isfinite(output).all():
                raise StretchError(f"the output of {source} for {name} contains NaN or infinity", "check the bundle with `stretch run`")
        evaluation.add(scores, original_outputs, label)
        evaluation.calibrated_on += bool(calibrated_on) and fingerprint(x) in calibrated_on
    return evaluation


#: Maximum size of a table of labels, in bytes.
MAX_TABLE_BYTES = 256 << 20

_TABLES = {".csv": ",", ".tsv": "\t"}


#: A file of images of one class, and the index of the output for this class; None if unknown.
ImageFile = tuple[Path, int | None]


@dataclass(frozen=True)
class LabelledFiles:
    """Files of images."""

    files: tuple[ImageFile, ...]  # Files in the order of their names.
    labels: Literal["folders", "table", "none"]  # Source of the labels.
    classes: dict[int, str]  # Names of the classes that have images, by output.

    def spread(self, limit: int | None) -> tuple[ImageFile, ...]:
        """Return at most `limit` of the files, evenly spread, so that every class keeps its share."""
        count = len(self.files)
        if limit is None or limit >= count:
            return self.files
        return tuple(self.files[i * count // limit] for i in range(limit))


def find_images(path: Path, outputs: int, names: Path | None = None, *, labelled: bool = True) -> LabelledFiles:
    """Find the images of a folder of class folders, a table of files and labels, or a folder without labels.

    Each class needs an output of the network. `names` assigns it, else a folder
    with the number of an output as its name, else the order of the names if
    there are as many classes as outputs.
    """
    if path.suffix.lower() in _TABLES and path.is_file():
        rows = _table(path)
        source: Literal["folders", "table", "none"] = "table"
    elif path.is_dir():
        rows, source = _folders(path) if labelled else [(file, None) for file in _images(path)], "folders"
    else:
        raise StretchError(f"there is no folder or table of images {path}", "give a folder of class folders, or a .csv of file,label")
    if not rows:
        raise StretchError(f"{path} has no images", f"images end in {', '.join((*ARRAYS, *PICTURES))}")
    labels_found = sorted({label for _, label in rows if label is not None})
    if not labels_found:
        return LabelledFiles(tuple((file, None) for file, _ in rows), "none", {})
    number = _numbers(path, labels_found, outputs, names)
    files = tuple((file, number[label] if label is not None else None) for file, label in rows)
    return LabelledFiles(files, source, {number[label]: label for label in labels_found})


def _images(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in (*ARRAYS, *PICTURES) and file.is_file() and not _hidden(file.relative_to(folder))
    )


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _folders(folder: Path) -> list[tuple[Path, str | None]]:
    """Return the images with the top-level folder that contains each; None as the folder if there are no class folders."""
    rows = [(file, file.relative_to(folder).parts[0] if file.parent != folder else None) for file in _images(folder)]
    loose = [file for file, label in rows if label is None]
    if loose and len(loose) < len(rows):
        raise StretchError(
            f"{loose[0]} is in no class folder, and {folder} has class folders",
            "move it into the folder of its class, or leave labels out with --no-labels",
        )
    return rows


def _table(path: Path) -> list[tuple[Path, str | None]]:
    """Read the rows of file and label, with paths relative to the table; a first row ``file,label`` is a heading."""
    try:
        if path.stat().st_size > MAX_TABLE_BYTES:
            raise StretchError(f"{path} is larger than {MAX_TABLE_BYTES >> 20} MB, a table of labels is not")
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = [row for row in csv.reader(stream, delimiter=_TABLES[path.suffix.lower()]) if row]
    except OSError as error:
        raise StretchError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise StretchError(f"{path} is no table of file and label: {error}", "write it in UTF-8, one file and label a line") from error
    if rows and [cell.strip().lower() for cell in rows[0]] == ["file", "label"]:
        rows = rows[1:]
    labelled: list[tuple[Path, str | None]] = []
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or not row[0].strip() or not row[1].strip():
            raise StretchError(f"row {number} of {path} is not a file and a label: {row}", "write one file and label a line")
        file = path.parent / row[0].strip()
        if not file.is_file():
            raise StretchError(f"row {number} of {path} names {file}, which is no file", "give paths relative to the table")
        labelled.append((file, row[1].strip()))
    return labelled


def _numbers(path: Path, labels: Sequence[str], outputs: int, names: Path | None) -> dict[str, int]:
    """Return the output of each class with images."""
    if names is not None:
        positions = {name: i for i, name in enumerate(_names(names, outputs))}
        strange = next((name for name in labels if name not in positions), None)
        if strange is not None:
            raise StretchError(f"class `{strange}` of {path} is not in {names}", "name the folders or labels as that file does")
        return {name: positions[name] for name in labels}
    if all(name.isascii() and name.isdigit() for name in labels):
        numbers = {name: int(name) for name in labels}
        if max(numbers.values()) >= outputs:
            highest = max(numbers, key=lambda name: numbers[name])
            raise StretchError(
                f"class `{highest}` of {path} is no output of the network, which are numbered 0 to {outputs - 1}",
                "count classes from 0, or give the name of each output's class with --classes FILE",
            )
        return numbers
    if len(labels) != outputs:
        raise StretchError(
            f"{path} has {len(labels)} classes and the network {outputs} outputs, so which is which is not known",
            "give the name of each output's class, one a line, with --classes FILE, or name classes by the number of their output",
        )
    return {name: i for i, name in enumerate(labels)}


def _names(file: Path, outputs: int) -> list[str]:
    try:
        if file.stat().st_size > MAX_TABLE_BYTES:
            raise StretchError(f"{file} is larger than {MAX_TABLE_BYTES >> 20} MB, a list of classes is not")
        names = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except OSError as error:
        raise StretchError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StretchError(f"{file} is no list of classes: it is not UTF-8", "write the name of each output's class, one a line") from error
    if len(names) != outputs:
        raise StretchError(f"{file} names {len(names)} classes, the network has {outputs} outputs", "name each output's class, one a line")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise StretchError(f"{file} names the class `{twice}` twice", "give every output a name of its own")
    return names


class ImagesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Images of an evaluation."""

    path: Path  # Path of the folder or table.
    files: int  # Number of files in use.
    count: int  # Number of images in these files.
    labels: str  # Source of the labels.
    classes: int  # Number of classes that have images.


class EvaluateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Evaluation of a bundle on images, with a comparison to the original."""

    bundle: Path  # Folder of the bundle.
    model: str  # Name of the network.
    weights: WeightsInfo  # Origin of its weights.
    precisions: list[str]  # Precisions of its subgraphs.
    source: str = "measured"  # Origin of the figures.
    images: ImagesAnswer  # Images of the evaluation.
    preprocessing: dict[str, Any]  # Preprocessing of the pictures.
    top1: Share | None  # Share of images whose best class is right; None without labels.
    top5: Share | None  # Share of images with the right class among the five best; None without labels, or with five classes or fewer.
    original: Accuracy | None  # Accuracy of the original; None without an original.
    original_classes: int | None  # Number of classes that the original answers; None without an original.
    calibrated_on: int  # Number of these images that were used for the bundle's calibration.
    #: Share of images with the same best class as the original; None without an original, or if it nearly always answers one class.
    agreement: Share | None
    top5_overlap: Share | None  # Share of common classes among the five best.
    error: float | None  # Root of the squared error of the outputs over the root of the original's square; None without an original.
    processors: dict[str, PlacedProcessor]  # Device and delegate of each processor.
    warnings: list[str]  # Warnings for the user.


def outputs_of(bundle: Bundle) -> int:
    """Return the number of classes of a bundle's network; refuse other networks."""
    # networks with several inputs or outputs are refused here
    _ = bundle.manifest.input, bundle.manifest.output
    shape = bundle.manifest.model.output_shape
    if len(shape) != 2 or shape[0] != 1 or bundle.manifest.model.input_shape[0] != 1:
        raise StretchError(
            f"{bundle.path} gives an output of shape {list(shape)}, which is no list of class scores",
            "only networks that classify one image at a time can be evaluated",
        )
    return shape[1]


def images_of(
    files: Sequence[ImageFile], shape: tuple[int, ...], preprocessing: Preprocessing, progress: Progress
) -> Iterator[tuple[str, NDArray[Any], int | None]]:
    """Yield the images of the files, which are read lazily."""
    for path, label in files:
        for image in read_images(path, shape, preprocessing):
            yield str(path), image, label
        progress("")

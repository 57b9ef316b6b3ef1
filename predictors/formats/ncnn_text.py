"""The text of ncnn's ``.param`` files: one layer a line, with its blobs and numbered parameters."""

import re
from dataclasses import dataclass, field

from predictors.errors import StretchError
from predictors.shapes import Shape

#: First line of every file of this format.
MAGIC = "7767517"

_PARAMETER = re.compile(r"-?\d+=.*")

#: Parameter ids from here downwards hold lists.
_LISTS = -23300

#: Parameter that states the shapes of a layer's outputs.
_HINTS = -23330

MAX_LAYERS = 20_000

Number = int | float


@dataclass(frozen=True)
class Layer:
    """One line."""

    kind: str  # ncnn's name of the layer, such as ``Convolution``.
    name: str  # Its name.
    inputs: tuple[str, ...]  # Blobs that it reads.
    outputs: tuple[str, ...]  # Blobs that it writes.
    params: dict[int, Number | tuple[Number, ...]] = field(default_factory=dict)  # Its parameters by id, as far as they are given.
    shapes: tuple[Shape, ...] = ()  # Of the outputs, batch first, as the file states them; empty if it does not.
    line: int = 0  # In the file, from 1.

    def integer(self, key: int, default: int) -> int:
        """Parameter `key` as a whole number."""
        value = self.params.get(key, default)
        if isinstance(value, tuple):
            raise StretchError(f"parameter {key} of layer `{self.name}` (line {self.line}) is a list, not a number")
        return int(value)

    def integers(self, key: int) -> tuple[int, ...]:
        """Parameter `key` as a list of whole numbers; empty if it is not given."""
        value = self.params.get(key, ())
        return tuple(int(number) for number in value) if isinstance(value, tuple) else (int(value),)


def parse_layers(text: str, what: str) -> list[Layer]:
    """The layers of a file, in its order."""
    lines = [line.split() for line in text.splitlines()]
    if len(lines) < 2 or lines[0] != [MAGIC]:
        raise StretchError(
            f"{what} is no ncnn network: its first line is not {MAGIC}", "give the text file `NAME.param`, not the binary one"
        )
    if len(lines[1]) != 2 or not all(part.isascii() and part.isdigit() for part in lines[1]):
        raise StretchError(f"{what} is damaged: line 2 is not the numbers of layers and blobs")
    stated = int(lines[1][0])
    if stated > MAX_LAYERS:
        raise StretchError(f"{what} has {stated} layers, the limit is {MAX_LAYERS}")
    written = [(number, parts) for number, parts in enumerate(lines[2:], start=3) if parts]
    if len(written) < stated:
        raise StretchError(f"{what} is damaged: it has {len(written)} layers, line 2 states {stated}")
    # ncnn itself reads no more than are stated
    return [_layer(parts, number, what) for number, parts in written[:stated]]


def _layer(parts: list[str], number: int, what: str) -> Layer:
    try:
        kind, name, reads, writes = parts[0], parts[1], int(parts[2]), int(parts[3])
        _check_blobs(parts[4:], reads, writes)
        blobs, words = parts[4 : 4 + reads + writes], parts[4 + reads + writes :]
        params: dict[int, Number | tuple[Number, ...]] = {}
        for word in words:
            key, _, value = word.partition("=")
            params.update([_parameter(int(key), value)])
    except (ValueError, IndexError, OverflowError) as error:
        raise StretchError(f"{what} is damaged: line {number} is no layer ({error})") from error
    hints = params.pop(_HINTS, ())
    shapes = _hinted(hints) if isinstance(hints, tuple) else ()
    return Layer(kind, name, tuple(blobs[:reads]), tuple(blobs[reads:]), params, shapes if len(shapes) == writes else (), number)


def _check_blobs(rest: list[str], reads: int, writes: int) -> None:
    """Refuse a line whose blobs are not as many as it states: what follows them are parameters, `id=value`."""
    blobs = sum(1 for word in rest if not _PARAMETER.fullmatch(word))
    if reads < 0 or writes < 0 or blobs != reads + writes:
        raise ValueError(f"it states {reads} and {writes} blobs and has {blobs}")


def _parameter(key: int, value: str) -> tuple[int, Number | tuple[Number, ...]]:
    """Id and value; a list has its length before its items, and an id counted down from −23300."""
    if key > _LISTS:
        return key, _number(value)
    count, *items = value.split(",")
    if int(count) != len(items):
        raise ValueError(f"list {key} states {count} items and has {len(items)}")
    return (key if key == _HINTS else _LISTS - key), tuple(_number(item) for item in items)


def _number(text: str) -> Number:
    value = float(text) if "." in text or "e" in text else int(text)
    if isinstance(value, float) and not abs(value) < 1e30:
        raise ValueError(f"{text} is no finite number")
    return value


def _hinted(hints: tuple[Number, ...]) -> tuple[Shape, ...]:
    """Shapes from quadruples of rank, width, height, channels."""
    shapes = []
    for at in range(0, len(hints) - 3, 4):
        rank, w, h, c = (int(hint) for hint in hints[at : at + 4])
        shapes.append({1: (1, w), 2: (1, h, w), 3: (1, c, h, w)}.get(rank, ()))
    return tuple(shapes) if all(shapes) else ()

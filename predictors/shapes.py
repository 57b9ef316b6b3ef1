"""Shapes and attributes of operators: their types, and reading them with a check."""

from collections.abc import Mapping

Shape = tuple[int, ...]
Attr = bool | int | float | str | tuple[int, ...]
Attrs = Mapping[str, Attr]


def ints(attrs: Attrs, key: str) -> tuple[int, ...]:
    """The tuple of ints `attrs[key]`; raises TypeError if it is something else."""
    value = attrs[key]
    if not isinstance(value, tuple):
        raise TypeError(f"`{key}` is {value!r}, not a list of numbers")
    return value


def integer(attrs: Attrs, key: str, default: int | None = None) -> int:
    """The int `attrs[key]`; raises TypeError if it is something else."""
    value = attrs.get(key, default) if default is not None else attrs[key]
    if not isinstance(value, int):
        raise TypeError(f"`{key}` is {value!r}, not a whole number")
    return value


def number(attrs: Attrs, key: str) -> float:
    """The float `attrs[key]`; raises TypeError if it is something else."""
    value = attrs[key]
    if not isinstance(value, int | float):
        raise TypeError(f"`{key}` is {value!r}, not a number")
    return float(value)


def rank4(shape: Shape) -> Shape:
    """`shape`, which must be N×C×H×W; raises ValueError if it is not."""
    if len(shape) != 4:
        raise ValueError(f"it needs an N×C×H×W tensor, it reads {shape}")
    return shape

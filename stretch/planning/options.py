"""Options of the planner, defined once for the command line, recipes, Python and the docs."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from predictors.errors import UsageError
from predictors.files import parse_toml
from stretch.planning.messages import format_value

#: Ratio of a part to the whole.
Ratio = Annotated[float, msgspec.Meta(ge=1e-6, le=1)]
#: Ratio or milliseconds; within these bounds, products with numbers of operators fit into 64-bit integers.
Positive = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
#: Both ends of a range.
Range = tuple[Positive, Positive]


class Help(NamedTuple):
    """Help text of a request's field as an option."""

    text: str  # One to three sentences.
    example: str = ""  # Example of a flag's value, for the error on an unclear value.
    file: bool = False  # Whether the value names a file.


@dataclass(frozen=True)
class Option:
    """One option of the planner.

    Its name is the argument of `stretch.PlanConfig`, the key in a recipe's ``[plan]``, and the flag of `stretch branch` or the key after
    its ``--set``. The type determines the syntax of its value: a number, a word, names (``cpu,gpu``), a range (``0.97:1.03``) or
    pairs (``cpu=int8,gpu=fp16``).
    """

    name: str  # Name of the option.
    kind: Any  # Type of the option with its bounds, as msgspec checks them.
    default: Any  # Default value; None for no request.
    help: str  # One to three sentences.
    example: str = ""  # Example of a flag's value, for the error on an unclear value.
    file: bool = False  # Whether the value names a file.

    @classmethod
    def of(cls, field: msgspec.structs.FieldInfo) -> "Option":
        """Return the option of a field with a `Help`."""
        base, *rest = get_args(field.type)
        [shown] = (item for item in rest if isinstance(item, Help))
        bounds = [item for item in rest if item is not shown]
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        return cls(field.name, Annotated[(base, *bounds)] if bounds else base, default, *shown)

    @property
    def base_type(self) -> Any:
        """Type of the option without bounds and without None."""
        kind = self.kind
        if get_origin(kind) in (Union, UnionType):
            kind = next(arg for arg in get_args(kind) if arg is not NoneType)
        return get_args(kind)[0] if get_origin(kind) is Annotated else kind

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed words; empty if the option is not a choice."""
        return get_args(self.base_type) if get_origin(self.base_type) is Literal else ()

    @property
    def flag_type(self) -> type:
        """Type of the flag's value for the command line's parser."""
        return Path if self.file else self.base_type if self.base_type in (int, float, bool) else str

    @property
    def shown_default(self) -> Any:
        """Default value in the syntax of the command line; None without a default."""
        return self.default if self.flag_type in (int, float, bool) else format_value(self.default) if self.default else None

    @property
    def minimum(self) -> int | None:
        """Minimum of an integer option, for the help; None without one."""
        bounds = [item for part in (self.kind, *get_args(self.kind)) for item in getattr(part, "__metadata__", ())]
        meta = next((bound for bound in bounds if isinstance(bound, msgspec.Meta)), None)
        if self.base_type is not int or meta is None:
            return None
        return int(meta.ge) if meta.ge is not None else None if meta.gt is None else int(meta.gt) + 1

    def read(self, word: Any) -> Any:
        """Parse a flag's text, or validate a TOML value, and return the option's value."""
        try:
            value = self._parse(word) if isinstance(word, str | Path) else word
        except ValueError as error:
            number = {int: "a whole number", float: "a number"}.get(self.base_type)
            hint = f"write it as `{self.name}={self.example}`" if self.example else number and f"write {number}"
            raise UsageError(f"`{self.name}={word}` is not understood", hint) from error
        return self.validate(value)

    def validate(self, value: Any) -> Any:
        """Return the value converted to the option's type; refuse values out of bounds."""
        try:
            return msgspec.convert(value, self.kind)
        except msgspec.ValidationError as error:
            if self.choices:
                raise UsageError(f"`{self.name}` cannot be `{value}`", f"choose from {', '.join(self.choices)}") from error
            reason = str(error).partition(" - at ")[0].lower()
            raise UsageError(f"`{self.name}` is out of range: {reason}") from error

    def _parse(self, word: Any) -> Any:
        if self.file:
            return str(word)
        kind = get_origin(self.base_type) or self.base_type
        if kind is dict:
            pairs = [part.partition("=") for part in _names(word)]
            if not all(name and value for name, _, value in pairs):
                raise ValueError(word)
            return {name: value for name, _, value in pairs}
        if kind is tuple and get_args(self.base_type)[-1] is ...:
            return _names(word)
        if kind is tuple:
            low, high = (float(part) for part in word.split(":"))
            return low, high
        return kind(word) if kind in (int, float) else word


def read_setting(text: str) -> tuple[str, Any]:
    """Return the key and value of ``key=value``, whose value is TOML; a string may be without quotes."""
    key, equals, word = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise UsageError(f"--set {text} is not understood", "write it as --set KEY=VALUE")
    try:
        return key, parse_toml(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return key, word
    except ValueError as error:
        raise UsageError(f"--set {text[:80]}: {error}") from error


def put_setting(raw: dict[str, Any], key: str, value: Any) -> None:
    """Put a value into nested tables at a dotted key."""
    *parents, last = key.split(".")
    for name in parents:
        raw = raw.setdefault(name, {})
        if not isinstance(raw, dict):
            raise UsageError(f"--set {key}: `{name}` is no table")
    raw[last] = value


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())

"""Sentences that speak of a request's options: the planner says which, and each edge spells them as its user wrote them.

An error does not contain ``--alpha 0.2``, but an `OptionName`, which is a flag, a key of a recipe or an argument of Python.
"""

import copy
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from predictors.errors import StretchError


@dataclass(frozen=True)
class OptionName:
    """An option in a sentence."""

    option: str  # Its name, as `stretch.PlanConfig` has it, or an argument of `stretch.branch`.
    value: Any = None  # The value that is spoken of; None for the option as such.


#: Options that the command line has flags for: of the planner, and of verbs whose sentences mention them. It takes others by `--set`.
FLAGS = frozenset((
    "alpha", "beta", "design", "images", "kinds", "lossless", "min_agreement", "minutes", "objective", "pareto", "precision", "processors",
    "refine", "repair", "steps", "within",
))  # fmt: skip

#: How one edge writes an option.
Spelling = Callable[[OptionName], str]


class Message(str):
    """A sentence with mentions of options, in place of each ``{}`` of its template; as a string it spells them as Python does."""

    __slots__ = ("parts", "template")

    template: str
    parts: tuple["str | OptionName", ...]

    def __new__(cls, template: str, *parts: "str | OptionName") -> "Message":
        """The sentence, spelled for Python."""
        new = super().__new__(cls, _fill_template(template, parts, format_argument))
        new.template, new.parts = template, parts
        return new

    def __getnewargs__(self) -> tuple[Any, ...]:
        """What a copy is made of."""
        return (self.template, *self.parts)


def format_probability(probability: float) -> str:
    """A probability in words, never rounded to certainty: ``over 99 %``, ``64 %``, ``under 1 %``."""
    if probability > 0.99 or probability < 0.01:
        return "over 99 %" if probability > 0.5 else "under 1 %"
    return f"{100 * probability:.0f} %"


def render_message(text: str, spelling: Spelling) -> str:
    """A text as one edge writes it; one without mentions stays as it is."""
    if not isinstance(text, Message):
        return text
    # mentions within parts are spelled alike
    return _fill_template(text.template, text.parts, spelling)


def _fill_template(template: str, parts: "tuple[str | OptionName, ...]", spelling: Spelling) -> str:
    return template.format(*(spelling(part) if isinstance(part, OptionName) else render_message(part, spelling) for part in parts))


@contextmanager
def render_errors(spelling: Spelling) -> Iterator[None]:
    """Let errors that pass through speak of options as one edge writes them."""
    try:
        yield
    except StretchError as error:
        raise render_error(error, spelling) from error


def render_error(error: StretchError, spelling: Spelling) -> StretchError:
    """The same error as one edge writes it."""
    other = copy.copy(error)
    other.message = render_message(error.message, spelling)
    other.hint = None if error.hint is None else render_message(error.hint, spelling)
    other.args = (other.message,)
    return other


def format_argument(mention: OptionName) -> str:
    """As Python has it: ```alpha=0.2```."""
    return f"`{mention.option}`" if mention.value is None else f"`{mention.option}={_literal(mention.value, '()')}`"


def format_flag(mention: OptionName) -> str:
    """As the command line has it: ``--alpha 0.2``, or ``--set merge=always`` where there is no flag."""
    flag, joined = ("--" + mention.option.replace("_", "-"), " ") if mention.option in FLAGS else (f"--set {mention.option}", "=")
    return flag if mention.value is None else f"{flag}{joined}{format_value(mention.value)}"


def command_line(*words: object, options: Sequence[OptionName] = ()) -> str:
    """A command as a shell reads it: `stretch`, words, and options."""
    more = [word for option in options for word in format_flag(option).split(" ", 1)]
    return shlex.join(["stretch", *map(str, words), *more])


def format_setting(mention: OptionName) -> str:
    """As a recipe has it: ```plan.alpha = 0.2```."""
    return f"`plan.{mention.option}`" if mention.value is None else f"`plan.{mention.option} = {_literal(mention.value, '[]')}`"


def format_value(value: Any) -> str:
    """A value as one word of the command line: ``0.2``, ``0.97:1.03``, ``cpu,gpu``, ``cpu=int8,gpu=fp16``."""
    if isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, tuple):
        return (":" if any(isinstance(item, float) for item in value) else ",").join(map(format_value, value))
    return format_number(value) if isinstance(value, int | float) else str(value)


def format_number(value: float) -> str:
    """A number as it is read, in at most six digits where it is no large whole one."""
    return f"{value:.6g}" if abs(value) < 1e6 else str(round(value))


def _literal(value: Any, brackets: str) -> str:
    if isinstance(value, dict):
        pairs = (f'"{name}": "{item}"' if brackets == "()" else f'{name} = "{item}"' for name, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, tuple):
        return brackets[0] + ", ".join(_literal(item, brackets) for item in value) + brackets[1]
    return format_number(value) if isinstance(value, int | float) else f'"{value}"'

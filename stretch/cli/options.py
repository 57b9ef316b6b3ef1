"""Flags that several verbs share, read into one request; the planner's are made from the descriptions of its options."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from stretch.planning.config import PLAN_OPTIONS, PlanConfig
from stretch.planning.options import Option


def planner_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a verb every option of the planner in place of its one parameter of type `PlanConfig`.

    Use it below `verb`::

        @verb
        @planner_options
        def branch(out: Output, model: ..., request: PlanConfig, seed: ...) -> None: ...
    """

    def read(values: dict[str, Any]) -> PlanConfig:
        return PlanConfig().having({option.name: option.read(values[option.name]) for option in PLAN_OPTIONS})

    return with_flags(function, PlanConfig, [_parameter(option) for option in PLAN_OPTIONS], read)


def with_flags(
    function: Callable[..., None], kind: type, flags: Sequence[inspect.Parameter], read: Callable[[dict[str, Any]], Any]
) -> Callable[..., None]:
    """A verb with several flags in place of its one parameter of a type."""
    signature = inspect.signature(function, eval_str=True)
    (request,) = (each.name for each in signature.parameters.values() if each.annotation is kind)

    @functools.wraps(function)
    def command(out: Any, **values: Any) -> None:
        asked = read({flag.name: values.pop(flag.name) for flag in flags})
        function(out, **values, **{request: asked})

    parameters: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        kept = flags if each.name == request else [each]
        parameters += [one if one.name == "out" else one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in kept]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    # inspect would follow it to the function that takes a request
    del command.__wrapped__  # type: ignore[attr-defined]
    return command


def _completing(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def _parameter(option: Option) -> inspect.Parameter:
    """A flag as the parser is told of it."""
    shown = option.shown
    kind = option.word if shown is not None else option.word | None
    flag = typer.Option(help=option.help, min=option.least, autocompletion=_completing(option.choices) if option.choices else None)
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=Annotated[kind, flag])

"""Flags that several verbs share, parsed into one request; the planner's flags are generated from its options."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from stretch.planning.config import PLAN_OPTIONS, PlanConfig
from stretch.planning.options import Option


def planner_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace a verb's parameter of type `PlanConfig` by a flag for every option of the planner.

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
    """Replace the one parameter of a type by several flags."""
    signature = inspect.signature(function, eval_str=True)
    (request,) = (parameter.name for parameter in signature.parameters.values() if parameter.annotation is kind)

    @functools.wraps(function)
    def command(out: Any, **values: Any) -> None:
        options_read = read({flag.name: values.pop(flag.name) for flag in flags})
        function(out, **values, **{request: options_read})

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        kept = flags if parameter.name == request else [parameter]
        parameters += [one if one.name == "out" else one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in kept]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    # otherwise inspect would report the signature of the wrapped function
    del command.__wrapped__  # type: ignore[attr-defined]
    return command


def _completing(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def _parameter(option: Option) -> inspect.Parameter:
    """The signature parameter of a flag."""
    shown = option.shown
    kind = option.word if shown is not None else option.word | None
    flag = typer.Option(help=option.help, min=option.least, autocompletion=_completing(option.choices) if option.choices else None)
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=Annotated[kind, flag])

"""Options of a verb that have no flag of their own: given by name, with `--set` or in the TOML file of `--config`.

They are the options of the planner, which `stretch.PlanConfig` has too, and arguments of Python's functions. Those of
the planner that most people need are flags as well.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from msgspec import Meta
from typer.models import ArgumentInfo

from predictors.errors import UnknownNameError, UsageError
from predictors.files import read_toml
from stretch.api.parameters import PANEL, AdvancedOption, Parsed
from stretch.cli.output import make_console
from stretch.planning.config import PLAN_OPTIONS, PlanConfig
from stretch.planning.options import Option, put_setting, read_setting

#: Planner options that have flags; verbs take the others by `--set`.
FLAGS = frozenset(("alpha", "beta", "kinds", "lossless", "min_agreement", "objective", "precision", "processors"))

#: The function of `calls`, with the values of its parameters as keywords.
Call = functools.partial[Any]


def calls(*functions: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the parameters of Python functions that are annotated for the command line, and the functions with their values.

    Use it below `verb` and `settings`; the functions come behind the verb's output and take what is left::

        @verb
        @calls(stretch.api.simulate)
        def simulate(out: Output, run: Call, html: Html = None) -> None: ...
    """
    # `out` is the verb's output
    shown = [{p.name: "folder" if p.name == "out" else p.name for p in _shared_parameters(function)} for function in functions]
    taken = [
        p.replace(name=names[p.name], kind=p.KEYWORD_ONLY) for f, names in zip(functions, shown, strict=True) for p in _shared_parameters(f)
    ]

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(body, eval_str=True)
        out, *rest = signature.parameters.values()

        @functools.wraps(body)
        def command(out: Any, **values: Any) -> None:
            arguments = [{name: values.pop(word) for name, word in names.items() if word in values} for names in shown]
            body(out, *(functools.partial(f, **some) for f, some in zip(functions, arguments, strict=True)), **values)

        # one parameter may take several functions
        rest = rest[next((i + 1 for i, p in enumerate(rest) if p.kind is p.VAR_POSITIONAL), len(functions)) :]
        others = [p.replace(kind=p.KEYWORD_ONLY) for p in rest]
        # the help begins with the options of whoever has the arguments
        has_argument = any(isinstance(note, ArgumentInfo) for p in taken for note in getattr(p.annotation, "__metadata__", ()))
        ordered = [*taken, *others] if has_argument else [*others, *taken]
        command.__signature__ = signature.replace(parameters=[out, *ordered])  # type: ignore[attr-defined]
        # otherwise inspect would report the signature of the wrapped function
        del command.__wrapped__  # type: ignore[attr-defined]
        return command

    return decorate


def _shared_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a Python function shares with the command line; planner options count as one."""
    parameters = inspect.signature(function).parameters.values()
    planner = {"annotation": PlanConfig, "default": inspect.Parameter.empty}
    return [
        p.replace(kind=p.KEYWORD_ONLY, **(planner if p.name == "config" else {}))
        for p in parameters
        if p.name == "config" or hasattr(p.annotation, "__metadata__")
    ]


def settings(flags: Collection[str] = FLAGS) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add `--set` and `--config` to a verb, from which it gets its parameters of type `PlanConfig` or with a `AdvancedOption`.

    Use it below `verb`::

        @verb
        @settings()
        def branch(out: Output, model: ..., config: PlanConfig, seed: Annotated[int, AdvancedOption("Seed.")] = 0) -> None: ...
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        taken, kept, request = {}, [], []
        for parameter in signature.parameters.values():
            if parameter.annotation is PlanConfig:
                taken[parameter.name] = PLAN_OPTIONS
                request = [option for option in PLAN_OPTIONS if option.name in flags]
                kept += [_flag(option) for option in request]
            elif (option := _advanced_option(parameter)) is not None:
                taken[parameter.name] = (option,)
            else:
                kept.append(parameter if parameter.name == "out" else parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        known = {option.name: option for options in taken.values() for option in options}

        @functools.wraps(function)
        def command(out: Any, change: list[str] | None = None, config_file: Path | None = None, **values: Any) -> None:
            words = {option.name: values.pop(option.name) for option in request}
            stated = read_settings(known, config_file, change or (), [parameter.name for parameter in kept])
            stated |= {name: known[name].read(word) for name, word in words.items() if word is not None}
            for name, options in taken.items():
                if options is PLAN_OPTIONS:
                    values[name] = PlanConfig().replace({option.name: stated[option.name] for option in options if option.name in stated})
                elif name in stated:
                    values[name] = stated[name]
            function(out, **values)

        command.__signature__ = signature.replace(parameters=[*kept, *_planner_settings(known, PANEL if request else None)])  # type: ignore[attr-defined]
        command.settings = known  # type: ignore[attr-defined]
        # otherwise inspect would report the signature of the wrapped function
        del command.__wrapped__  # type: ignore[attr-defined]
        return command

    return decorate


def read_settings(
    known: Mapping[str, Option], file: Path | None, changes: Collection[str] = (), flags: Collection[str] = ()
) -> dict[str, Any]:
    """Values of a TOML file, with changes, by option (`changes`: ``key=value`` each, which count more than the file)."""
    raw = {} if file is None else read_toml(file, "configuration")
    for name, option in known.items():
        # files are relative to the one that names them
        if option.file and isinstance(raw.get(name), str) and file is not None:
            raw[name] = str(file.parent / raw[name])
    for change in changes:
        put_setting(raw, *read_setting(change))
    for name in raw:
        if name in flags and name not in known:
            raise UsageError(f"`{name}` is no setting", f"it has a flag, --{name.replace('_', '-')}")
        if name not in known:
            raise UnknownNameError.among("setting", name, known)
    stated = {name: known[name].read(value) for name, value in raw.items()}
    if {"size", "crop"} <= (stated.get("preprocessing") or {}).keys():
        raise UsageError("preprocessing.size and preprocessing.crop both say how much of a picture is kept", "give one of the two")
    return stated


def _advanced_option(parameter: inspect.Parameter) -> Option | None:
    """The option of a parameter with a `AdvancedOption`."""
    if get_origin(parameter.annotation) is not Annotated:
        return None
    kind, *more = get_args(parameter.annotation)
    words = next((item for item in more if isinstance(item, AdvancedOption)), None)
    kind = next((item.kind for item in more if isinstance(item, Parsed)), kind)
    bounds = tuple(item for item in more if isinstance(item, Meta))
    return None if words is None else Option(parameter.name, Annotated[kind, *bounds] if bounds else kind, parameter.default, str(words))


def _flag(option: Option) -> inspect.Parameter:
    """The flag of an option, whose default shows in the help alone: what is not given may stand in the file."""
    shown = str(option.shown_default) if option.shown_default and option.flag_type is not bool else False
    complete = _completing(option.choices) if option.choices else None
    flag = typer.Option(help=option.help, min=option.minimum, show_default=shown, autocompletion=complete, rich_help_panel=PANEL)
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[option.flag_type | None, flag])


def _completing(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def _planner_settings(known: Mapping[str, Option], panel: str | None) -> list[inspect.Parameter]:
    """`--set` and `--config`."""

    def complete(incomplete: str) -> list[str]:
        words = [f"{name}={choice}" for name, option in known.items() for choice in option.choices or ("",)]
        names = [f"{name}=" for name in known if "=" not in incomplete]
        return [word for word in names or words if word.startswith(incomplete)]

    def show(changes: list[str] | None) -> list[str] | None:
        if changes == ["help"]:
            from stretch.report.fit import table

            rows = (
                (name, "" if option.shown_default is None else str(option.shown_default), option.help) for name, option in known.items()
            )
            make_console(sys.stdout).print(table("setting", "default", "meaning", rows=rows))
            raise typer.Exit
        return changes

    change = typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Give an option by its name; repeatable. `--set help` lists them all.",
        rich_help_panel=panel,
        autocompletion=complete,
        callback=show,
        is_eager=True,
    )
    file = typer.Option(
        "--config", metavar="FILE", help="Read options from a TOML file. Flags and --set override it.", rich_help_panel=panel
    )
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (("change", Annotated[list[str] | None, change]), ("config_file", Annotated[Path | None, file]))
    ]

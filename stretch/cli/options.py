"""Make a command of a verb's function: parameters are options, and so are the fields of parameters that are records.

Options without a flag are set by name, with `--set` or in the TOML file of `--config`: options with an
`AdvancedOption`, and options of the planner (`stretch.cli.planner`).
"""

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, is_dataclass, make_dataclass
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin

import typer
from msgspec import Meta, Struct
from typer.models import ParameterInfo

from predictors.errors import UnknownNameError, UsageError
from predictors.files import read_toml
from stretch.api.parameters import PANEL, AdvancedOption, Parsed
from stretch.cli.help import Verb
from stretch.cli.output import Output, make_console
from stretch.planning.options import Option, put_setting, read_setting

T = TypeVar("T")


class OptionsOf(NamedTuple):
    """Options that make one argument of a verb's function: ``Annotated[kind, OptionsOf(...)]``."""

    options: Callable[[], Iterable[inspect.Parameter]]  # Returns the options.
    make: Callable[[dict[str, Any]], Any]  # Makes the argument from the values of given options.


class _Argument(NamedTuple):
    """Options of one parameter of a verb's function."""

    options: list[inspect.Parameter]
    make: Callable[[dict[str, Any]], dict[str, Any]]  # Returns arguments of the function, from the values of given options.


def verb_command(name: str, function: Callable[..., None]) -> Verb:
    """Return the command of a verb's function, whose first parameter is its `Output`.

    Each other parameter is an option, or a record (a dataclass or a msgspec struct) whose annotated fields are options::

        class Lines(msgspec.Struct, frozen=True, kw_only=True):
            count: Annotated[int, typer.Option(help="Number of lines.")] = 5
            seed: Annotated[int, AdvancedOption("Seed of the words.")] = 0


        def show(out: Output, lines: Lines, config: Plan) -> None: ...
    """
    _, *parameters = inspect.signature(function, eval_str=True).parameters.values()
    arguments = [_argument(parameter) for parameter in parameters]
    options = {option.name: option for argument in arguments for option in argument.options}
    settings = {name: setting for name, option in options.items() if (setting := _setting(option)) is not None}
    own = [name for name in options if name not in settings]
    flags = [option for name, option in options.items() if name in own or _note(option, ParameterInfo) is not None]
    if settings:
        flags += _settings_flags(settings, PANEL if len(own) < len(flags) else None)
    flags += [option for name, option in fields(Output).items() if name not in options]

    def run(values: dict[str, Any]) -> None:
        out = Output(**{name: values[name] for name in fields(Output)})
        with out.streams():
            stated = read_settings(settings, values.pop("config_file", None), values.pop("change", ()), own)
            stated |= {option.name: _read(option, values[option.name]) for option in flags if option.name in values}
            made = [argument.make({o.name: stated[o.name] for o in argument.options if o.name in stated}) for argument in arguments]
            function(out, **{name: value for part in made for name, value in part.items()})

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    context = {"help_option_names": ["-h", "--help"]}
    record = make_dataclass("Values", map(_parser_field, flags), kw_only=True)
    app.command(name, cls=Verb, context_settings=context, help=inspect.getdoc(function))(record)
    command = cast(Verb, typer.main.get_command(app))
    parse = command.callback
    assert parse is not None
    command.callback = lambda **words: run({key: value for key, value in vars(parse(**words)).items() if value is not None and value != []})
    command.settings = settings
    return command


def _argument(parameter: inspect.Parameter) -> _Argument:
    name, kind = parameter.name, parameter.annotation
    if (composed := _note(parameter, OptionsOf)) is not None:
        return _Argument(list(composed.options()), lambda given: {name: composed.make(given)})
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Struct)):
        return _Argument(list(fields(kind).values()), lambda given: {name: kind(**given)})
    return _Argument([parameter], lambda given: given)


def fields(record: type) -> dict[str, inspect.Parameter]:
    """Return the annotated fields of a record, which are its options."""
    parameters = inspect.signature(record, eval_str=True).parameters
    return {name: parameter for name, parameter in parameters.items() if hasattr(parameter.annotation, "__metadata__")}


def _note(option: inspect.Parameter, kind: type[T]) -> T | None:
    """Return the annotation metadata of this class of an option; None without any."""
    return next((note for note in getattr(option.annotation, "__metadata__", ()) if isinstance(note, kind)), None)


def _setting(option: inspect.Parameter) -> Option | None:
    """Return the option as a setting of `--set`; None if it is no setting."""
    if (words := _note(option, AdvancedOption)) is None:
        return _note(option, Option)
    kind, *notes = get_args(option.annotation)
    parsed, bounds = _note(option, Parsed), tuple(note for note in notes if isinstance(note, Meta))
    kind = kind if parsed is None else parsed.kind
    return Option(option.name, Annotated[kind, *bounds] if bounds else kind, option.default, str(words))


def _read(option: inspect.Parameter, value: Any) -> Any:
    """Convert a value of the parser to the option's value."""
    reader = _note(option, Parsed) or _note(option, Option)
    return value if reader is None else reader.read(value)


def _parser_field(option: inspect.Parameter) -> tuple[str, Any, Any]:
    """Return an option as a field (name, type, default) with a type that the parser supports."""
    kind, default, parsed = option.annotation, option.default, _note(option, Parsed)
    if (info := _note(option, ParameterInfo)) is not None:
        kind = get_args(kind)[0]
        if parsed is not None:
            kind, default = parsed.kind, default if default is option.empty or isinstance(default, str) else None
        elif get_origin(kind) is Sequence:
            kind, default = GenericAlias(list, get_args(kind)) | None, None
        elif Path in get_args(kind):
            kind = Path | None if default is None else Path
        kind = Annotated[kind, info]
    return option.name, kind, field() if default is option.empty else field(default=default)


def read_settings(
    known: Mapping[str, Option], file: Path | None, changes: Collection[str] = (), flags: Collection[str] = ()
) -> dict[str, Any]:
    """Return values by option, from a TOML file and from `changes`, each ``key=value``, which override the file."""
    raw = {} if file is None else read_toml(file, "configuration")
    for name, option in known.items():
        # paths are relative to the TOML file
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


def _settings_flags(known: Mapping[str, Option], panel: str | None) -> list[inspect.Parameter]:
    """Return the options `--set` and `--config`."""

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

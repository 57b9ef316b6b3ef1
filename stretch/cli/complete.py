"""What the shell completes beside verbs and flags: values of parameters, by the parameter's name."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, TypeVar

from typer.core import TyperCommand

Command = TypeVar("Command", bound=TyperCommand)


def add_completions(command: Command) -> Command:
    """Let a verb's parameters complete their values."""
    for param in command.params:
        known = VALUES.get(f"{command.name} {param.name}") or VALUES.get(param.name)
        if known is not None:
            param._custom_shell_complete = _completing(known)
    return command


def _completing(known: Callable[[str], Iterable[str]]) -> Callable[..., list[Any]]:
    def complete(_context: Any, _param: Any, incomplete: str) -> list[Any]:
        from typer._click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in known(incomplete) if name.startswith(incomplete)]

    return complete


def _import_name(place: str) -> Any:
    """What ``module:name`` names, imported when it is asked for."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _modes(_start: str) -> Iterable[str]:
    delegates = _import_name("scheduler.delegates:delegates")
    return sorted({mode for name in delegates for mode in delegates.get(name).tunes})


#: Names by the parameter that takes them, of one verb or of all. Files are completed by the shell where nothing here fits.
VALUES: dict[str, Callable[[str], Iterable[str]]] = {
    "device": lambda start: _import_name("predictors.devices:list_devices")(),
    "model": lambda start: _import_name("stretch.models.families:quick_names")(start),
    "recipe": lambda start: (file.stem for file in sorted(_import_name("stretch.train.recipe:recipe_folder")().glob("*.toml"))),
    "mode": _modes,
}

"""What the shell completes beside verbs and flags: values of parameters, by the parameter's name."""

from collections.abc import Callable, Sequence
from typing import Any


def add_completions(command: Any) -> Any:
    """Let a verb's parameters complete their values."""
    for param in command.params:
        known = VALUES.get(param.name)
        if known is not None:
            param._custom_shell_complete = _completing(known)
    return command


def _completing(known: Callable[[str], Sequence[str]]) -> Callable[..., list[Any]]:
    def complete(_context: Any, _param: Any, incomplete: str) -> list[Any]:
        from typer._click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in known(incomplete) if name.startswith(incomplete)]

    return complete


def _devices(_start: str) -> Sequence[str]:
    from predictors.devices import list_devices

    return list_devices()


def _models(start: str) -> Sequence[str]:
    from stretch.models.names import quick_names

    return quick_names(start)


def _recipes(_start: str) -> Sequence[str]:
    from stretch.train.recipe import recipe_folder

    return [file.stem for file in sorted(recipe_folder().glob("*.toml"))]


def _modes(_start: str) -> Sequence[str]:
    from scheduler.delegates import delegates

    return sorted({mode for name in delegates for mode in delegates.get(name).tunes})


def _timed_runtimes(_start: str) -> Sequence[str]:
    from scheduler.tools.bench.runtimes import RUNTIMES

    return list(RUNTIMES)


def _foreign_runtimes(_start: str) -> Sequence[str]:
    from scheduler.tools.explain.child import RUNTIMES

    return list(RUNTIMES)


#: Names by the parameter that takes them. Files are completed by the shell where nothing here fits.
VALUES: dict[str, Callable[[str], Sequence[str]]] = {
    "device": _devices,
    "model": _models,
    "recipe": _recipes,
    "mode": _modes,
    "runtimes": _timed_runtimes,
    "foreign_runtime": _foreign_runtimes,
}

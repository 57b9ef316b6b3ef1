"""Options of the planner, the fields of `stretch.PlanConfig`; common ones have flags, and `--set` sets all."""

import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

from stretch.api.parameters import PANEL
from stretch.cli.options import OptionsOf
from stretch.planning.config import PLAN_OPTIONS, PlanConfig
from stretch.planning.options import Option

#: Options with flags.
FLAGS = ("alpha", "beta", "kinds", "lossless", "min_agreement", "objective", "precision", "processors")


def _option(option: Option, *, flag: bool) -> inspect.Parameter:
    """Return an option of the planner; a flag's default is only in the help, because the TOML file may set an option without a flag."""
    shown = str(option.shown_default) if option.shown_default and option.flag_type is not bool else False
    complete = _completing(option.choices) if option.choices else None
    info = typer.Option(help=option.help, min=option.minimum, show_default=shown, autocompletion=complete, rich_help_panel=PANEL)
    kind: Any = option.flag_type | None
    annotation = Annotated[kind, info, option] if flag else Annotated[kind, option]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _completing(choices: tuple[str, ...]) -> Callable[[str], list[str]]:
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def _request(flags: Collection[str]) -> OptionsOf:
    return OptionsOf(lambda: [_option(option, flag=option.name in flags) for option in PLAN_OPTIONS], PlanConfig().replace)


#: The request to the planner, as an argument of a verb.
Plan = Annotated[PlanConfig, _request(FLAGS)]
#: The request for a front, without a flag for the bound on agreement.
FrontPlan = Annotated[PlanConfig, _request([name for name in FLAGS if name != "min_agreement"])]

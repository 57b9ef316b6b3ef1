"""`stretch models`: the models that have a name."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from predictors.errors import UnknownNameError
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    from rich.console import Console


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that has a name.

    Args:
        name: Its name.
        family: Whose it is.
        checked: Whether it is branched in the project's tests.
    """

    name: str
    family: str
    checked: bool


class ModelsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Models by name; the fields are the keys of `stretch models --json`.

    Args:
        items: Each model.
    """

    items: list[ListedModel]


@verb
def models(
    out: Output,
    pattern: Annotated[str, typer.Argument(help="Wildcard pattern, such as 'resnet*' or 'timm:*next*'.")] = "*",
) -> None:
    """List models by name; those marked `checked` are branched in the project's tests."""
    from stretch.models import model_names
    from stretch.models.families import OWN, each_family

    known = model_names(pattern)
    checked = set()
    for key, family in each_family():
        # another package's family may lack what is of use to this project alone
        if key in OWN or any(found == key for _, found in known):
            checked |= {family.prefix + name for name in getattr(family, "checked", frozenset)()}
    items = [ListedModel(name=name, family=family, checked=name in checked) for name, family in known]
    if not items:
        raise UnknownNameError.among("model", pattern, [name for name, _ in model_names()])

    def human(console: "Console") -> None:
        width = max(len(item.name) for item in items)
        for item in items:
            console.print(f"{item.name:<{width}}  {item.family:<11}  {'checked' if item.checked else ''}".rstrip())

    out.emit(ModelsAnswer(items=items), human)

"""Write the generated parts of `docs/reference/python.md` from signatures and docstrings: `python docs/make_python_reference.py [--check]`.

A part lies between ``<!-- name stretch.branch -->`` and ``<!-- /name -->``; the
text around it is written by hand.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from msgspec import NODEFAULT

from predictors.shapes import InputShapes

PAGE = Path(__file__).resolve().parent / "reference" / "python.md"

PART = re.compile(r"<!-- name ([\w. ]+) -->\n.*?<!-- /name -->", re.DOTALL)

#: Sections of a docstring (Google style), and the head of the table's first column.
LISTS = {"Args": "argument", "Attributes": "attribute", "Raises": "error"}


def reference(text: str) -> str:
    """Return the page with its generated parts written again."""
    return PART.sub(lambda match: f"<!-- name {match[1]} -->\n{_part(match[1].split())}<!-- /name -->", text)


def _part(names: list[str]) -> str:
    """One name in full, or several in a table."""
    things = {name: find(name) for name in names}
    if len(things) > 1:
        return _table("name", {name: inspect.getdoc(thing) or "" for name, thing in things.items()})
    ((name, thing),) = things.items()
    return _class(name, thing) if inspect.isclass(thing) else _function(name, thing)


def find(name: str) -> Any:
    """Object of this name, such as ``stretch.branch``."""
    package, _, current = name.rpartition(".")
    return getattr(importlib.import_module(package), current)


def _function(name: str, function: Any) -> str:
    docstring = Docstring(function, _helps(function))
    if rows := docstring.lists.get("Args"):
        docstring.lists["Args"] = {argument: rows[argument] for argument in inspect.signature(function).parameters if argument in rows}
    return _code(_signature(name, function)) + docstring.markdown()


def _helps(function: Any) -> dict[str, str]:
    """Help of parameters, or of fields of a record, from the command line's annotations."""
    notes = {name: getattr(parameter.annotation, "__metadata__", ()) for name, parameter in inspect.signature(function).parameters.items()}
    helps = {name: [item for item in items if hasattr(item, "help") or isinstance(item, str)] for name, items in notes.items()}
    return {name: str(getattr(items[0], "help", items[0])) for name, items in helps.items() if items}


def _class(name: str, kind: type) -> str:
    """A class: how it is made, or what it holds, then its methods and properties."""
    held = is_dataclass(kind)
    if held:
        head = _attributes(name, kind)
    elif hasattr(kind, "__struct_fields__"):
        head = _fields(name, kind)
    else:
        head = _signature(name, vars(kind)["__init__"])
    helps = _helps(kind) if hasattr(kind, "__struct_fields__") else {}
    parts = [_code(head) + Docstring(kind, helps).markdown("attribute" if held else "argument")]
    public = {key: value for key, value in vars(kind).items() if not key.startswith("_")}
    properties = {key: Docstring(value).text for key, value in public.items() if isinstance(value, property | cached_property)}
    if properties:
        parts.append(_table("property", properties))
    for key, value in public.items():
        if inspect.isfunction(value):
            parts.append(_function(f"{name.rpartition('.')[2]}.{key}", value))
    return "\n".join(parts)


def _signature(name: str, function: Any) -> str:
    """The signature with the types that the source has, an argument a line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs, tree.args.kwarg)
    written = {item.arg: _type(item.annotation) for item in arguments if item is not None and item.annotation is not None}
    words: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        if parameter.name != "self":
            words.append("**" * (parameter.kind is parameter.VAR_KEYWORD) + _argument(parameter, written.get(parameter.name)))
    result = "" if tree.name == "__init__" or tree.returns is None else f" -> {_type(tree.returns)}"
    return ("await " if isinstance(tree, ast.AsyncFunctionDef) else "") + _call(name, words) + result


def _fields(name: str, kind: Any) -> str:
    """The constructor of a configuration, whose fields are its arguments."""
    hints = get_type_hints(kind)
    types = {field: re.sub(r"^Optional\[(.*)\]$", r"\1 | None", _plain(hints[field])) for field in kind.__struct_fields__}
    defaults = {
        field.name: field.default_factory() if field.default is NODEFAULT else field.default
        for field in msgspec.structs.fields(kind)
        if not field.required
    }
    words = (f"{field}: {types[field]}" + (f" = {defaults[field]!r}" if field in defaults else "") for field in kind.__struct_fields__)
    return _call(name, ["*", *words])


def _plain(hint: Any) -> str:
    shapes = inspect.formatannotation(InputShapes)
    text = inspect.formatannotation(hint).replace(shapes, "InputShapes")
    return re.sub(r"typing\.|collections\.abc\.|pathlib\.|predictors\.devices\.|predictors\.fits\.\w+\.|predictors\.thermal\.", "", text)


def _attributes(name: str, kind: type) -> str:
    """Members of a class, with the types that the source has."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    fields = [part for part in tree.body if isinstance(part, ast.AnnAssign)]
    return f"{name}\n" + "\n".join(f"    {ast.unparse(part.target)}: {_type(part.annotation)}" for part in fields)


def _call(name: str, words: list[str]) -> str:
    one = f"{name}({', '.join(words)})"
    return one if len(one) <= 100 else f"{name}(\n" + "".join(f"    {word},\n" for word in words) + ")"


def _argument(parameter: inspect.Parameter, written: str | None) -> str:
    kind = getattr(parameter.annotation, "__origin__", None) if hasattr(parameter.annotation, "__metadata__") else written
    if kind is not None and not isinstance(kind, str):
        kind = getattr(kind, "__forward_arg__", None) or _plain(kind)
    text = parameter.name if kind is None else f"{parameter.name}: {kind}"
    default = repr(parameter.default).replace("mappingproxy({})", "{}")
    return text if parameter.default is parameter.empty else f"{text} = {default}"


def _type(annotation: ast.expr) -> str:
    """An annotation without the quotes that keep torch from being imported."""
    return str(annotation.value) if isinstance(annotation, ast.Constant) and annotation.value is not None else ast.unparse(annotation)


class Docstring:
    """A docstring in Google style.

    Args:
        thing: Object that it belongs to.
        helps: Help of parameters elsewhere.
    """

    def __init__(self, thing: Any, helps: Mapping[str, str] | None = None) -> None:
        head, *rest = re.split(r"^(\w+):\n(?=    )", inspect.getdoc(thing) or "", flags=re.MULTILINE)
        sections = dict(zip(rest[::2], rest[1::2], strict=True))
        #: Without literal blocks: the page has examples of its own, which are run.
        self.text = re.sub(r"^::\n\n(?: +.*\n|\n)+", "", head, flags=re.MULTILINE).strip()
        self.lists = {name: _entries(sections[name]) for name in LISTS if name in sections}
        if helps:
            self.lists["Args"] = dict(helps) | self.lists.get("Args", {})
        self.returns = _line(sections.get("Returns", ""))

    def markdown(self, arguments: str = "argument") -> str:
        """Its sentences, a table for each list, and what is returned."""
        parts = ["\n\n".join(_line(part) for part in self.text.split("\n\n")) + "\n"]
        parts += [
            _table({"Args": arguments}.get(name, LISTS[name]), self.lists[name]) for name in ("Args", "Attributes") if name in self.lists
        ]
        if self.returns:
            parts.append(f"Returns: {self.returns}\n")
        if "Raises" in self.lists:
            parts.append(_table(LISTS["Raises"], self.lists["Raises"]))
        return "\n".join(parts)


def _entries(section: str) -> dict[str, str]:
    """``name: sentence`` lines, which may go on further in."""
    matches = re.findall(r"^(\w+): (.*(?:\n +.*)*)", textwrap.dedent(section), flags=re.MULTILINE)
    return {name: _line(text) for name, text in matches}


def _line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def _table(head: str, rows: dict[str, str]) -> str:
    body = "".join(f"| `{name}` | {_line(text).replace('|', chr(92) + '|')} |\n" for name, text in rows.items())
    return f"| {head} | |\n|---|---|\n{body}"


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n\n"


def main(words: list[str]) -> int:
    """Write the page; with ``--check`` change nothing and return 1 if it is out of date."""
    before = PAGE.read_text()
    text = reference(before)
    if text == before:
        return 0
    if "--check" in words:
        sys.stderr.write("docs/reference/python.md is out of date: run make docs\n")
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Small wrong changes of the code, one at a time, and which of them the fast tests notice.

A mutant is one changed place in a function: a comparison, an operator of arithmetic, a boolean, a number, a returned value.
`draw` picks them with a seed over the rooms of `ROOMS`; `judge` writes each into a copy of the repository and runs the tests
that reach its line, shortest first, until one fails. Which tests reach a line is known from coverage by test
(`experiments.suite.contexts`).
"""

import ast
import importlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
#: What is changed, and the issue of strength is about.
ROOMS = (
    "predictors",
    "scheduler/bundle",
    "scheduler/runtime",
    "stretch/capture",
    "stretch/planning",
    "stretch/transform",
)
COMPARED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}  # fmt: skip
SYMBOLS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}  # fmt: skip
ARITHMETIC = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "+")}  # fmt: skip
LOGICAL = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
#: Seconds of tests that a mutant is given; those that reach its line beyond that are not run.
SECONDS = 12.0


class Mutant(msgspec.Struct, frozen=True):
    """One changed place."""

    file: str  # Relative to the repository.
    line: int  # Of the change, from 1, in the file that it was drawn from.
    kind: str  # What is changed.
    before: str  # The line as it is.
    after: str  # The line changed.
    occurrence: int  # Which of the file's lines that read like `before` it is, from 0.


def changes(source: str) -> Iterator[tuple[str, int, int, int, str]]:
    """Kind, line, first and last column and new text of every place in a function that can be changed within one line."""
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in (part for statement in function.body for part in ast.walk(statement)):
            if getattr(node, "lineno", None) is None or node.lineno != node.end_lineno:
                continue
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                left, right = node.left.end_col_offset, node.comparators[0].col_offset
                yield from between(source, node.lineno, left, right, "comparison", SYMBOLS[type(node.ops[0])], COMPARED[type(node.ops[0])])
            elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
                before, after = ARITHMETIC[type(node.op)]
                yield from between(source, node.lineno, node.left.end_col_offset, node.right.col_offset, "arithmetic", before, after)
            elif isinstance(node, ast.BoolOp):
                before, after = LOGICAL[type(node.op)]
                yield from between(source, node.lineno, node.values[0].end_col_offset, node.values[1].col_offset, "logical", before, after)
            elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
                yield "boolean", node.lineno, node.col_offset, node.end_col_offset, str(not node.value)
            elif isinstance(node, ast.Constant) and isinstance(node.value, int):
                yield "number", node.lineno, node.col_offset, node.end_col_offset, str(node.value + 1)
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                yield "negation", node.lineno, node.col_offset, node.operand.col_offset, ""
            elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
                yield "returned", node.lineno, node.value.col_offset, node.value.end_col_offset, "None"
            elif isinstance(node, ast.Continue):
                yield "loop", node.lineno, node.col_offset, node.end_col_offset, "break"


def between(source: str, line: int, left: int, right: int, kind: str, before: str, after: str) -> Iterator[tuple[str, int, int, int, str]]:
    """The place of an operator between two operands, if it stands there once."""
    gap = source.splitlines()[line - 1].encode()[left:right].decode()
    places = [match.span() for match in re.finditer(rf"(?<![\w<>=!*/]){re.escape(before)}(?![\w<>=*/])", gap)]
    if len(places) == 1:
        yield kind, line, left + places[0][0], left + places[0][1], after


def draw(count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """As many mutants, drawn evenly over all places of the rooms."""
    places = []
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            lines = source.splitlines()
            for kind, line, first, last, text in changes(source):
                before = lines[line - 1]
                data = before.encode()
                after = (data[:first] + text.encode() + data[last:]).decode()
                occurrence = lines[: line - 1].count(before)
                places.append(Mutant(path.relative_to(root).as_posix(), line, kind, before, after, occurrence))
    chosen = random.Random(seed).sample(sorted(set(places), key=lambda m: (m.file, m.line, m.after)), count)
    return sorted(chosen, key=lambda mutant: (mutant.file, mutant.line))


def located(mutant: Mutant, root: Path) -> int | None:
    """The line that a mutant changes in these sources, from 1; None where they no longer have it."""
    path = root / mutant.file
    if not path.is_file():
        return None
    lines = [number for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if text == mutant.before]
    return lines[mutant.occurrence] if mutant.occurrence < len(lines) else None


class Verdict(msgspec.Struct, frozen=True):
    """What became of one mutant."""

    mutant: Mutant  # The change.
    state: str  # ``caught``, ``missed`` (tests that reach it pass), ``unreached`` or ``gone`` (the sources no longer have the line).
    tests: int = 0  # Number of tests that reach the line.
    by: str = ""  # The test that failed.


def judge(mutant: Mutant, copy: Path, reach: dict[str, float]) -> Verdict:
    """Run the tests that reach a mutant's line in a copy of the repository that has it.

    Args:
        mutant: The change.
        copy: A copy of the repository, which is changed and changed back.
        reach: Tests that reach the line, with their seconds.
    """
    line = located(mutant, copy)
    if line is None:
        return Verdict(mutant, "gone")
    if not reach:
        return Verdict(mutant, "unreached")
    path = copy / mutant.file
    original = path.read_text(encoding="utf-8")
    lines = original.splitlines(keepends=True)
    lines[line - 1] = mutant.after + "\n"
    path.write_text("".join(lines), encoding="utf-8")
    try:
        failed = first_failure(copy, affordable(reach))
    finally:
        path.write_text(original, encoding="utf-8")
    return Verdict(mutant, "caught" if failed else "missed", len(reach), failed or "")


def affordable(reach: dict[str, float]) -> list[str]:
    """The shortest tests, one case of each function before a second one of any, within `SECONDS`."""
    seen: dict[str, int] = {}
    ranked = []
    for test in sorted(reach, key=lambda name: (reach[name], name)):
        # OpenVINO and PoCL in one process end in a segmentation fault
        if "openvino" in test:
            continue
        function = test.split("[")[0]
        seen[function] = seen.get(function, -1) + 1
        ranked.append((min(seen[function], 3), reach[test], test))
    chosen, total = [], 0.0
    for _, seconds, test in sorted(ranked):
        if chosen and total + seconds > SECONDS:
            continue
        chosen.append(test)
        total += seconds
    return chosen


def first_failure(copy: Path, tests: list[str]) -> str | None:
    """The first of these tests that fails, or what happened to the process that ran them; None if all pass.

    The process is forked off this one, which has imported the libraries (`preload`), and imports the project anew from the copy.
    """
    with tempfile.NamedTemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            try:
                os.setsid()
                os.chdir(copy)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.environ["PYTHONPATH"] = str(copy)
                sys.path.insert(0, str(copy))
                for name in [name for name in sys.modules if name.split(".")[0] in ("predictors", "scheduler", "stretch", "experiments", "tests", "tools")]:  # fmt: skip
                    del sys.modules[name]
                import pytest

                options = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-rfE"]
                status = int(pytest.main([*options, *tests]))
            except BaseException:
                # whatever happens, the child must not go on as its parent does
                status = 70
            os._exit(status)
        deadline = time.monotonic() + 4 * SECONDS + 60
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            time.sleep(0.05)
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "time ran out"
        if ended[1] == 0:
            return None
        output.seek(0)
        text = output.read()
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return names[0] if names else f"ended with {os.waitstatus_to_exitcode(ended[1])}: {text.strip().splitlines()[-1:]}"


def preload() -> None:
    """Import what the tests import from elsewhere, once for all mutants."""
    for name in ("pytest", "numpy", "scipy.optimize", "onnx", "onnxruntime", "torch", "torchvision", "typer", "rich.progress"):
        importlib.import_module(name)


def copied(to: Path, root: Path = ROOT) -> Path:
    """A copy of the repository's files, without what is generated."""
    ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache", "site")
    return Path(shutil.copytree(root, to, ignore=ignored, dirs_exist_ok=True))

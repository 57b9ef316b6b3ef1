"""One operator graph as one class of torch."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from predictors.graph import Op, OpGraph
from stretch.capture.captured import returned_by
from stretch.capture.structure import Returned
from stretch.emit.code import OWN, Code, attribute, code_of
from stretch.emit.returned import kind_of_returned, returned_code

#: Calls within calls on one line, and characters of it, at most.
MAX_NESTED, MAX_LINE = 3, 110

_PLACE = re.compile(r"\{(\d+)\}")
#: Binds less tightly than what it may stand in.
_LOOSE = re.compile(r" [+*/] ")


@dataclass(frozen=True)
class Written:
    """A class as text."""

    name: str  # Of the class.
    text: str  # The class.
    attributes: Mapping[str, str]  # Of each operator with weights, the attribute that has them.
    #: Operators whose tensors are attributes of the class itself, the attribute's name in front of theirs.
    loose: frozenset[str] = frozenset()
    helpers: tuple[type[nn.Module], ...] = ()  # Classes of nn-stretch that it needs.

    def key(self, op: str, weight: str) -> str:
        """The name that a tensor of an operator has in the class's state dict."""
        return f"{self.attributes[op]}_{weight}" if op in self.loose else f"{self.attributes[op]}.{weight}"


def write_class(name: str, graph: OpGraph, docstring: str, returned: Returned | None = None) -> Written:
    """A class that computes a graph: a module for each operator with weights, functions for all others."""
    writer = _Writer(graph)
    lines = [f"class {name}(nn.Module):", f'    """{docstring}"""', "", "    def __init__(self) -> None:", "        super().__init__()"]
    lines += [f"        {line}" for line in writer.definitions]
    template = (returned or returned_by(graph)).template
    reads = ", ".join(f"{writer.sources[op.name]}: torch.Tensor" for op in graph.inputs)
    lines += ["", f"    def forward(self, {reads}) -> {kind_of_returned(template)}:"]
    *run, last = [*writer.run, f"return {returned_code(template, writer.results)}"]
    if len(graph.outputs) == 1 and run and run[-1].startswith(f"{last.removeprefix('return ')} = "):
        last = f"return {run.pop().partition(' = ')[2]}"
    lines += [f"        {line}" for line in (*run, last)]
    return Written(name, "\n".join(lines) + "\n", writer.attributes, frozenset(writer.loose), tuple(dict.fromkeys(writer.helpers)))


@dataclass
class _Line:
    """One assignment: a chain of operators, each of which reads the one before alone."""

    result: str  # The operator that it ends with.
    reads: tuple[str, ...]  # What its first operator reads.
    expression: str  # Its code, with places for what it reads.
    depth: int = 1  # Operators in it.


class _Writer:
    """Lines of a class's constructor and of its forward.

    A variable is used again once nothing reads it any more, so that tensors go as early as they do in nn-stretch.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.definitions: list[str] = []
        self.attributes: dict[str, str] = {}
        self.loose: set[str] = set()
        self.helpers: list[type[nn.Module]] = []
        self.sources: dict[str, str] = {}
        lines, same = self._lines()
        self.run, variables = self._assigned(lines, [same[output] for output in graph.outputs])
        #: The variable of each output.
        self.results = {output: variables[same[output]] for output in graph.outputs}

    def _lines(self) -> tuple[list[_Line], dict[str, str]]:
        """Assignments in order, and the operator that computes each tensor: those that pass on what they read are left out."""
        same: dict[str, str] = {}
        readers = self.graph.consumers
        open_ends: dict[str, _Line] = {}
        lines: list[_Line] = []
        for op in self.graph.ops:
            same[op.name] = op.name
            if op.kind == "input":
                continue
            code = code_of(op, self.graph.input_shapes(op))
            if code.passes:
                same[op.name] = same[op.inputs[0]]
                open_ends.pop(same[op.name], None)
                continue
            reads = tuple(same[name] for name in op.inputs)
            expression = code.expression.replace(OWN, self._own(op, code))
            before = open_ends.pop(reads[0], None) if len(reads) == 1 else None
            if before is not None and _nests(before, expression):
                lines.remove(before)
                line = _Line(op.name, before.reads, _nested(expression, before.expression), before.depth + 1)
            else:
                line = _Line(op.name, reads, expression)
            lines.append(line)
            if len(readers[op.name]) == 1 and op.name not in self.graph.outputs:
                open_ends[op.name] = line
        return lines, same

    def _own(self, op: Op, code: Code) -> str:
        """Make what an operator has of its own, and say how forward finds it."""
        self.helpers += code.helpers
        if not code.module and not code.tensors:
            return ""
        name = attribute(op.name)
        while name in self.attributes.values():
            name += "_"
        self.attributes[op.name] = name
        if code.module:
            self.definitions.append(f"self.{name} = {code.module}")
        else:
            self.loose.add(op.name)
        for key, (learned, value) in code.tensors.items():
            definition = f"self.{name}_{key} = nn.Parameter({value})" if learned else f'self.register_buffer("{name}_{key}", {value})'
            self.definitions.append(definition)
        return f"self.{name}"

    def _assigned(self, lines: list[_Line], outputs: list[str]) -> tuple[list[str], dict[str, str]]:
        """Lines of forward, and the variables that are left."""
        left: dict[str, int] = {}
        for read in (*(line_read for line in lines for line_read in line.reads), *outputs):
            left[read] = left.get(read, 0) + 1
        variables: dict[str, str] = {}
        for op in self.graph.inputs:
            variables[op.name] = self.sources[op.name] = _unused(variables.values())
        for name in [op.name for op in self.graph.inputs if op.name not in left]:
            del variables[name]
        run = []
        for line in lines:
            text = _PLACE.sub(lambda match, reads=line.reads: variables[reads[int(match[1])]], line.expression)
            for read in line.reads:
                left[read] -= 1
            for read in [name for name in dict.fromkeys(line.reads) if not left[name]]:
                del variables[read]
            variables[line.result] = _unused(variables.values())
            run.append(f"{variables[line.result]} = {text}")
        return run, variables


def _nests(inner: _Line, outer: str) -> bool:
    return inner.depth < MAX_NESTED and outer.count("{0}") == 1 and len(inner.expression) + len(outer) < MAX_LINE


def _nested(outer: str, inner: str) -> str:
    """The one in the place of the other, in brackets where it would fall apart."""
    # a call has brackets of its own around what it reads first
    bare = not re.search(r"\w\(\{0\}", outer)
    return outer.replace("{0}", f"({inner})" if bare and _LOOSE.search(inner) else inner)


def _unused(taken: Iterable[str]) -> str:
    """``x``, ``y``, ``z``, ``x3`` …: the first that stands for nothing."""
    there = set(taken)
    names = ("x", "y", "z", *(f"x{i}" for i in range(3, len(there) + 4)))
    return next(name for name in names if name not in there)

"""What stops an operator, by what is known of it and what the runtime says, and what to change."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from scheduler.explain.model import ForeignModel, ForeignOp

#: Element types that accelerators compute with.
USUAL = ("float", "float32", "float16", "int8", "uint8", "int32", "bool")

_VERSION = re.compile(r"opset (\d+)", re.IGNORECASE)


def find_cause(model: ForeignModel, i: int, words: str | None, taken_kinds: Collection[str]) -> tuple[str, str]:
    """What stops an operator and what to change."""
    op, said = model.ops[i], words or ""
    if model.kind == "ONNX" and (match := _VERSION.search(said)) and int(match[1]) == model.opset:
        return f"opset {model.opset}", "export the model with a newer opset"
    if op.domain:
        return f"domain {op.domain}", "write it with operators of ONNX itself, or give the runtime the library that has it"
    named = next((name for name in op.attributes if _mentions(said, name)), None)
    if named is not None:
        return f"{named} = {_short(op.attributes[named])}", f"export it with another `{named}`, or replace it"
    unusual = _type_in(said, op) or next((kind for kind in op.types if kind not in USUAL and not _is_index(op, kind)), None)
    if unusual is not None and "quantize" not in op.op.lower():
        return f"type {unusual}", f"export the model without {unusual} tensors here"
    if op.dynamic:
        shape = next(shape for shape in op.shapes if None in shape)
        return f"shape {_sizes(shape)}", "export the model with fixed shapes"
    if rank := re.search(r"\brank|\bdimension", said, re.IGNORECASE):
        return f"shape {_sizes(op.shapes[0]) if op.shapes else rank[0]}", "reshape its input to fewer axes, or replace it"
    if op.op in taken_kinds:
        shown = ", ".join(f"{name} = {_short(value)}" for name, value in op.attributes.items())
        return f"settings {shown}" if shown else "inputs", f"compare it with the operators of type {op.op} that are taken"
    return f"operator {op.op}", f"replace {op.op} by operators that the runtime takes, or leave it out of the model"


def _mentions(words: str, name: str) -> bool:
    """Whether words speak of an attribute, in its spelling or with spaces or capitals."""
    parts = name.split("_")
    return len(name) > 3 and re.search(rf"(?<![a-z]){'[ _-]?'.join(map(re.escape, parts))}(?![a-z])", words, re.IGNORECASE) is not None


def _type_in(words: str, op: ForeignOp) -> str | None:
    """An element type of the operator that the words speak of."""
    return next((kind for kind in op.types if re.search(rf"(?<![a-z]){kind}(?![\w])", words, re.IGNORECASE)), None)


def _is_index(op: ForeignOp, kind: str) -> bool:
    """Whether a type is that of sizes and places, which runtimes read as constants."""
    return kind in ("int64", "int32") and any(other in ("float", "float32", "float16") for other in op.types)


def _sizes(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _short(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def kinds(taken: Mapping[int, str], target: str, model: ForeignModel) -> set[str]:
    """Types of the operators that a target takes."""
    return {model.ops[i].op for i, where in taken.items() if where == target}

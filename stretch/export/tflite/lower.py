"""From operator graphs to TFLite subgraphs: which operator becomes which, in int8 or in reals."""

from collections.abc import Mapping

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.joins import meeting_of
from predictors.operators import kind_of
from scheduler.formats.tflite_checks import MAX_FACTORS
from stretch.formats.tflite.builder import Builder, Value, to_nhwc
from stretch.formats.tflite.source import Source
from stretch.formats.tflite.weights import growth
from stretch.formats.tflite.writer import Piece, Writer
from stretch.operators.forms import forms


def to_tflite(writer: Writer, name: str, source: Source, *, half: bool = False) -> Piece:
    """Lower a subgraph and add it to a file, with a signature of its name.

    Its inputs and outputs are float, NHWC, called like the tensors. An operator
    whose tensors have scales computes in int8; where two scales meet, and where
    int8 meets reals, a conversion stands between them.
    """
    piece = Piece(writer, name)
    graph = source.graph
    builder = Builder(piece, source.scales, half=half)
    values: dict[str, Value] = {}
    starts = {op.name: builder.input(op.name, to_nhwc(op.shape)) for op in graph.inputs}
    values.update(starts)
    fused: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "input":
            continue
        ins = [values[i] for i in op.inputs]
        if kind_of(op.kind).identity:
            values[op.name] = _renamed(builder, ins[0], op.name, source)
            continue
        if op.name in fused:
            values[op.name] = values[fused[op.name]]
            continue
        values[op.name] = _lowered(builder, source, op, ins)
        after = _activation(source, op)
        if after is not None:
            piece.operators[-1]["builtin_options"]["fused_activation_function"] = forms.get(after.kind).activation
            values[op.name].nonnegative = True
            fused[after.name] = op.name
    builder.rounded = False
    results: dict[str, int] = {}
    for name in graph.outputs:
        result = builder.real(values[name])
        if result in (*results.values(), *map(_index, starts.values())):  # a tensor has one name: what is handed on is copied
            copied = builder.apply("RESHAPE", name, [values[name]], extra=[builder.indices(f"{name}.shape", values[name].shape)])
            result = builder.real(copied)
        piece.tensors[result]["name"] = name
        results[name] = result
    writer.add(piece, {name: _index(start) for name, start in starts.items()}, results)
    return piece


def join_to_tflite(
    writer: Writer, name: str, kind: str, inputs: Mapping[str, tuple[int, ...]], output: tuple[str, tuple[int, ...]]
) -> None:
    """Add a join as a subgraph of its own: reals in, reals out, NHWC."""
    piece = Piece(writer, name)
    builder = Builder(piece, {})
    values = [builder.input(each, shape) for each, shape in inputs.items()]
    made, shape = output
    operator = meeting_of(kind).operator
    joined = Op(made, operator, tuple(inputs), shape=_nchw(shape))
    rule = forms.get(operator).tflite
    assert rule is not None
    result = rule(builder, Source(OpGraph(name, (joined,), (made,)), {}), joined, values)
    writer.add(piece, {value.name: _index(value) for value in values}, {made: builder.real(result)})


def _nchw(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1])


def _index(value: Value) -> int:
    assert value.real is not None
    return value.real


def _renamed(builder: Builder, value: Value, name: str, source: Source) -> Value:
    """What an identity gives: the same tensors under another name, or in integers of its own scale where it has another.

    The quantiser leaves an activation that comes first out: an identity whose scale begins at zero is all that is left of it.
    """
    own = source.scales.get(name)
    if own is not None and value.quant not in (None, own):
        return Value(
            name, value.shape, own, integer=builder.integer(value, own), nonnegative=own.zero_point == -128, flattened=value.flattened
        )
    return Value(name, value.shape, value.quant or own, value.real, value.integer, value.nonnegative, value.flattened)


def _lowered(builder: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    form = forms.get(op.kind)
    if form.tflite is None:
        known = ", ".join(name for name in forms if forms.get(name).tflite is not None)
        raise StretchError(f"operator `{op.name}` ({op.kind}) has no form in TFLite", f"kinds that have one: {known}")
    scale = source.scales.get(op.name)
    several = form.pairwise and len(ins) > 2  # parts of the result have no scale of their own
    builder.rounded = form.int8 and scale is not None and all(value.quant for value in ins) and not several
    if builder.rounded and not kind_of(op.kind).weightless:
        builder.rounded = growth(source, op, ins[0], scale) <= MAX_FACTORS["weights"]
    made = form.tflite(builder, source, op, ins)
    made.name = op.name
    if builder.rounded and made.quant != scale:
        made = Value(
            op.name, made.shape, scale, integer=builder.integer(made, scale), nonnegative=made.nonnegative, flattened=made.flattened
        )
    made.quant = scale
    # What begins at the lowest integer has no number below 0.
    made.nonnegative = made.nonnegative or (builder.rounded and scale is not None and scale.zero_point == -128)
    return made


def _activation(source: Source, op: Op) -> Op | None:
    """The activation that alone reads an operator's result and that the operator applies itself, in reals."""
    graph = source.graph
    readers = graph.consumers[op.name]
    if not forms.get(op.kind).activates or len(readers) != 1 or op.name in graph.outputs or op.name in source.scales:
        return None
    reader = graph.by_name[readers[0]]
    return reader if forms.get(reader.kind).activation is not None else None

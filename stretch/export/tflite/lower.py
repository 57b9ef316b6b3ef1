"""Lowering of operator graphs to TFLite subgraphs, in int8 or float."""

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
from stretch.operators.lowerings import lowerings


def to_tflite(writer: Writer, name: str, source: Source, *, half: bool = False) -> Piece:
    """Lower a subgraph and add it to a file, with a signature of its name.

    Its inputs and outputs are float, NHWC, and have the tensors' names. An operator
    whose tensors have scales computes in int8; between two scales, and between
    int8 and float, a conversion is inserted.
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
            piece.operators[-1]["builtin_options"]["fused_activation_function"] = lowerings.get(after.kind).activation
            values[op.name].nonnegative = True
            fused[after.name] = op.name
    builder.rounded = False
    results: dict[str, int] = {}
    for name in graph.outputs:
        result = builder.real(values[name])
        if result in (*results.values(), *map(_index, starts.values())):  # a tensor has one name, so an output of two names is copied
            copied = builder.apply("RESHAPE", name, [values[name]], extra=[builder.indices(f"{name}.shape", values[name].shape)])
            result = builder.real(copied)
        piece.tensors[result]["name"] = name
        results[name] = result
    writer.add(piece, {name: _index(start) for name, start in starts.items()}, results)
    return piece


def join_to_tflite(
    writer: Writer, name: str, kind: str, inputs: Mapping[str, tuple[int, ...]], output: tuple[str, tuple[int, ...]]
) -> None:
    """Add a join as a separate float subgraph, NHWC."""
    piece = Piece(writer, name)
    builder = Builder(piece, {})
    values = [builder.input(input_name, shape) for input_name, shape in inputs.items()]
    output_name, shape = output
    operator = meeting_of(kind).operator
    joined = Op(output_name, operator, tuple(inputs), shape=_nchw(shape))
    rule = lowerings.get(operator).tflite
    assert rule is not None
    result = rule(builder, Source(OpGraph(name, (joined,), (output_name,)), {}), joined, values)
    writer.add(piece, {value.name: _index(value) for value in values}, {output_name: builder.real(result)})


def _nchw(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1])


def _index(value: Value) -> int:
    assert value.real is not None
    return value.real


def _renamed(builder: Builder, value: Value, name: str, source: Source) -> Value:
    """The result of an identity: the same tensors under another name, requantised if it has another scale.

    The quantiser drops an activation at the beginning; an identity whose scale begins at zero remains of it.
    """
    quant = source.scales.get(name)
    if quant is not None and value.quant not in (None, quant):
        return Value(
            name, value.shape, quant, integer=builder.integer(value, quant), nonnegative=quant.zero_point == -128, flattened=value.flattened
        )
    return Value(name, value.shape, value.quant or quant, value.real, value.integer, value.nonnegative, value.flattened)


def _lowered(builder: Builder, source: Source, op: Op, ins: list[Value]) -> Value:
    lowering = lowerings.get(op.kind)
    if lowering.tflite is None:
        known = ", ".join(name for name in lowerings if lowerings.get(name).tflite is not None)
        raise StretchError(f"operator `{op.name}` ({op.kind}) has no TFLite lowering", f"supported kinds: {known}")
    scale = source.scales.get(op.name)
    several = lowering.pairwise and len(ins) > 2  # intermediate sums have no scale
    builder.rounded = lowering.int8 and scale is not None and all(value.quant for value in ins) and not several
    if builder.rounded and not kind_of(op.kind).weightless:
        builder.rounded = growth(source, op, ins[0], scale) <= MAX_FACTORS["weights"]
    result = lowering.tflite(builder, source, op, ins)
    result.name = op.name
    if builder.rounded and result.quant != scale:
        result = Value(
            op.name, result.shape, scale, integer=builder.integer(result, scale), nonnegative=result.nonnegative, flattened=result.flattened
        )
    result.quant = scale
    # With the lowest integer as zero point there are no negative numbers.
    result.nonnegative = result.nonnegative or (builder.rounded and scale is not None and scale.zero_point == -128)
    return result


def _activation(source: Source, op: Op) -> Op | None:
    """The activation that is fused into an operator: its only reader, in float."""
    graph = source.graph
    readers = graph.consumers[op.name]
    if not lowerings.get(op.kind).activates or len(readers) != 1 or op.name in graph.outputs or op.name in source.scales:
        return None
    reader = graph.by_name[readers[0]]
    return reader if lowerings.get(reader.kind).activation is not None else None

"""Operators that compute: elementwise functions, reductions, normalisations, products, windows and recurrent layers."""

import math
from functools import partial

from predictors.errors import StretchError, need
from predictors.operators import Kind, kinds
from scheduler.formats.onnx.shapes.node import (
    ANY,
    BOOL,
    BYTES,
    FLOAT,
    FLOAT16,
    INDICES,
    INT32,
    INT64,
    MAX_STEP,
    NUMBERS,
    REALS,
    RULES,
    UINT8,
    Cost,
    KnownTensor,
    Rule,
    Shape,
    ShapeNode,
    broadcast,
    normalise_axes,
    result_cost,
    rule,
    same_shape_cost,
)

#: Allowed target types of a Cast.
CASTS = frozenset({FLOAT, FLOAT16, INT32, INT64, BOOL})

_REAL = (
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log", "Reciprocal"),
    *("Round", "Selu", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "ThresholdedRelu"),
)


def _by_kind(kind: Kind) -> Rule:
    """Return the rule of an operator that belongs to one kind only."""

    def rule(node: ShapeNode) -> Cost:
        need(len(node.inputs) >= kind.min_inputs, f"it has {len(node.inputs)} inputs")
        tensors = node.tensors(REALS)
        try:
            shape = kind.shape([tensor.shape for tensor in tensors], {})
        except ValueError as error:
            raise StretchError(str(error)) from error
        return _elementwise_cost(shape, tensors, tensors[0].type)

    return rule


def _elementwise_cost(shape: tuple[int, ...], tensors: list[KnownTensor], type: int) -> Cost:
    """Return the cost of one operation per element and input tensor."""
    return result_cost(shape, KnownTensor(shape).size * len(tensors), type)


def _elementwise_rule(types: frozenset[int], count: int | None = None, result_type: int | None = None) -> Rule:
    """Return the rule of an operator on broadcast tensors of one type: `count` of them or any number; the result has `result_type` or theirs."""

    def rule(node: ShapeNode) -> Cost:
        tensors = node.tensors(types)
        need(count in (None, len(tensors)), f"it has {len(tensors)} inputs")
        return _elementwise_cost(
            broadcast([tensor.shape for tensor in tensors]), tensors, tensors[0].type if result_type is None else result_type
        )

    return rule


@rule("Pow")
def _pow(node: ShapeNode) -> Cost:
    base, exponent = node.tensor(0, REALS | INDICES), node.tensor(1, REALS | INDICES)
    return _elementwise_cost(broadcast([base.shape, exponent.shape]), [base, exponent], base.type)


@rule("Mod")
def _mod(node: ShapeNode) -> Cost:
    need(bool(node.integer("fmod", 0)) or node.tensor(0).type not in REALS, "it takes the remainder of reals without fmod")
    return _elementwise_rule(NUMBERS, 2)(node)


@rule("Where")
def _where(node: ShapeNode) -> Cost:
    condition, first, second = node.tensor(0, frozenset({BOOL})), node.tensor(1), node.tensor(2)
    need(first.type == second.type, "it chooses between two element types")
    return _elementwise_cost(broadcast([condition.shape, first.shape, second.shape]), [condition, first, second], first.type)


@rule("Cast")
def _cast(node: ShapeNode) -> Cost:
    x, to = node.tensor(0), node.integer("to", 0)
    need(to in CASTS, f"it casts to type {to}")
    values = x.values
    if values is not None and to in INDICES | {BOOL}:
        # Casts round to the next whole number towards zero; NaN and infinity stay unknown.
        are_integers = all(n == n and abs(n) < 1 << 53 for n in values)
        values = tuple(bool(n) if to == BOOL else int(n) for n in values) if are_integers else None
    return Cost((KnownTensor(x.shape, to, values),), x.size)


@rule("Clip")
def _clip(node: ShapeNode) -> Cost:
    x = node.tensor(0, NUMBERS)
    for bound in (node.optional(1), node.optional(2)):
        need(bound is None or (not bound.shape and bound.type == x.type), "its bounds are no single numbers")
    return same_shape_cost(x)


@rule("PRelu")
def _prelu(node: ShapeNode) -> Cost:
    x, slope = node.tensor(0, REALS), node.tensor(1, REALS)
    need(broadcast([x.shape, slope.shape]) == x.shape, f"its slopes have the shape {list(slope.shape)}")
    return same_shape_cost(x)


@rule("Identity")
def _identity(node: ShapeNode) -> Cost:
    x = node.tensor(0)
    return Cost((x,), x.size)


_BOOL, _WHOLE = frozenset({BOOL}), BYTES | INDICES


RULES.update(
    {
        **dict.fromkeys(_REAL, _elementwise_rule(REALS, 1)),
        **dict.fromkeys(("Neg", "Abs", "Sign"), _elementwise_rule(NUMBERS, 1)),
        "Not": _elementwise_rule(_BOOL, 1),
        "BitwiseNot": _elementwise_rule(_WHOLE, 1),
        **dict.fromkeys(("IsInf", "IsNaN"), _elementwise_rule(REALS, 1, BOOL)),
        **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _elementwise_rule(NUMBERS, 2)),
        **dict.fromkeys(("Max", "Min"), _elementwise_rule(NUMBERS)),
        **dict.fromkeys(("Mean", "Sum"), _elementwise_rule(REALS)),
        **dict.fromkeys(("And", "Or", "Xor"), _elementwise_rule(_BOOL, 2)),
        **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), _elementwise_rule(_WHOLE, 2)),
        "Equal": _elementwise_rule(ANY, 2, BOOL),
        **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _elementwise_rule(NUMBERS, 2, BOOL)),
        **{node: _by_kind(kinds.get(name)) for name in kinds for node in kinds.get(name).nodes},
    }
)


def _reduced_shape(shape: tuple[int, ...], axes: list[int], keep: bool) -> list[int]:
    """Return the shape after reducing the axes."""
    return [1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes]


@rule(*(f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")))
def _reduce(node: ShapeNode) -> Cost:
    x, axes = node.tensor(0, REALS | INDICES), node.attribute_or_input("axes", 1)
    if not axes and not node.integer("noop_with_empty_axes", 0):
        axes = list(range(len(x.shape)))
    reduced = normalise_axes(axes or [], len(x.shape))
    return result_cost(_reduced_shape(x.shape, reduced, bool(node.integer("keepdims", 1))), x.size, x.type)


@rule("ArgMax", "ArgMin")
def _arg(node: ShapeNode) -> Cost:
    x = node.tensor(0, NUMBERS)
    axis = node.axis("axis", 0, len(x.shape))
    return result_cost(_reduced_shape(x.shape, [axis], bool(node.integer("keepdims", 1))), x.size, INT64)


@rule("TopK")
def _top_k(node: ShapeNode) -> Cost:
    x, count = node.tensor(0, REALS | INDICES), node.number(1)
    axis = node.axis("axis", -1, len(x.shape))
    need(0 < count <= x.shape[axis], f"it takes {count} of {x.shape[axis]}")
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return Cost((KnownTensor(shape, x.type), KnownTensor(shape, INT64))[: node.results], x.size * x.shape[axis].bit_length())


@rule("CumSum")
def _cum_sum(node: ShapeNode) -> Cost:
    x, axis = node.tensor(0, REALS | INDICES), node.number(1)
    normalise_axes([axis], len(x.shape))
    return result_cost(x.shape, x.size, x.type)


@rule("BatchNormalization")
def _batch_norm(node: ShapeNode) -> Cost:
    x = node.tensor(0, REALS)
    need(not node.integer("training_mode", 0) and node.results == 1, "it is in training mode")
    need(len(x.shape) >= 2 and all(node.shape(i) == (x.shape[1],) for i in range(1, 5)), "its statistics are not one number a channel")
    return same_shape_cost(x)


@rule("LayerNormalization")
def _layer_norm(node: ShapeNode) -> Cost:
    """Return the result, and, if requested, the mean and the inverse deviation."""
    x, rank = node.tensor(0, REALS), len(node.shape(0))
    axis = node.axis("axis", -1, rank)
    normalised = x.shape[axis:]
    for weight in (node.tensor(1), node.optional(2)):
        fits = weight is None or broadcast([weight.shape, normalised]) == normalised
        need(fits, "its weights do not fit the axes that it normalises")
    statistics = KnownTensor((*x.shape[:axis], *[1] * (rank - axis)), FLOAT)
    return Cost((KnownTensor(x.shape, x.type), statistics, statistics)[: node.results], 4 * x.size)


@rule("GroupNormalization")
def _group_norm(node: ShapeNode) -> Cost:
    x, groups = node.tensor(0, REALS), node.integer("num_groups", 0)
    need(len(x.shape) >= 3 and groups > 0 and x.shape[1] % groups == 0, f"{groups} groups do not divide {list(x.shape)}")
    # Before opset 21 it has one weight per group.
    size = node.shape(1)
    need(size in ((groups,), (x.shape[1],)) and node.shape(2) == size, "its weights are not one number a channel")
    return same_shape_cost(x, 4)


@rule("InstanceNormalization")
def _instance_norm(node: ShapeNode) -> Cost:
    x = node.tensor(0, REALS)
    need(len(x.shape) >= 3, f"its input has the shape {list(x.shape)}")
    need(all(node.shape(i) == (x.shape[1],) for i in (1, 2)), "its weights are not one number a channel")
    return same_shape_cost(x, 4)


@rule("LogSoftmax", "LpNormalization", "Softmax")
def _along_axis(node: ShapeNode) -> Cost:
    x = node.tensor(0, REALS)
    node.axis("axis", -1, len(x.shape))
    return same_shape_cost(x, 4)


@rule("LRN")
def _lrn(node: ShapeNode) -> Cost:
    x, size = node.tensor(0, REALS), node.integer("size", 0)
    need(len(x.shape) >= 3 and 0 < size <= MAX_STEP, f"its size is {size}")
    return same_shape_cost(x, size)


def _check_scales(node: ShapeNode, x: KnownTensor) -> None:
    """Check that there is one scale and zero point for all elements, or one for each position along one axis."""
    need(not node.integer("block_size", 0), "it has a scale for each block")
    axis = node.integer("axis", 1)
    for scales in [node.shape(i) for i in range(1, len(node.inputs))]:
        per_tensor = scales in ((), (1,))
        need(
            per_tensor or (-len(x.shape) <= axis < len(x.shape) and scales == (x.shape[axis],)), f"its scales have the shape {list(scales)}"
        )


@rule("QuantizeLinear")
def _quantise(node: ShapeNode) -> Cost:
    x, zero = node.tensor(0, REALS), node.optional(2)
    _check_scales(node, x)
    need(zero is None or zero.type in BYTES, "its zero point is no byte")
    return result_cost(x.shape, x.size, UINT8 if zero is None else zero.type)


@rule("DequantizeLinear")
def _dequantise(node: ShapeNode) -> Cost:
    x = node.tensor(0, BYTES | {INT32})
    _check_scales(node, x)
    need(node.tensor(1).type in REALS, "its scales are no reals")
    return result_cost(x.shape, x.size, FLOAT)


@rule("MatMul")
def _matmul(node: ShapeNode) -> Cost:
    need(len(node.inputs) == 2, f"it has {len(node.inputs)} inputs")
    left, right = node.tensors(REALS)
    need(bool(left.shape and right.shape), "one of its inputs is a single number")
    rows, columns = left.shape[-2:-1], right.shape[-1:] if len(right.shape) > 1 else ()
    inner = right.shape[-2] if columns else right.shape[0]
    need(left.shape[-1] == inner, f"{left.shape[-1]} columns meet {inner} rows")
    shape = (*broadcast([left.shape[:-2], right.shape[:-2]]), *rows, *columns)
    return result_cost(shape, math.prod(shape) * inner, left.type)


@rule("Gemm")
def _gemm(node: ShapeNode) -> Cost:
    left, right = node.tensor(0, REALS), node.tensor(1, REALS)
    a, b = left.shape, right.shape
    need(len(a) == len(b) == 2, f"its inputs have the shapes {list(a)} and {list(b)}")
    a = a[::-1] if node.integer("transA", 0) else a
    b = b[::-1] if node.integer("transB", 0) else b
    need(a[1] == b[0], f"{a[1]} columns meet {b[0]} rows")
    shape = (a[0], b[1])
    bias = node.optional(2)
    need(bias is None or broadcast([shape, bias.shape]) == shape, "its bias does not fit its result")
    return result_cost(shape, a[0] * a[1] * b[1], left.type)


@rule("Einsum")
def _einsum(node: ShapeNode) -> Cost:
    """Return the cost of a product of two tensors, or a sum over one, with an explicit result."""
    equation, tensors = node.string("equation", "").replace(" ", ""), node.tensors(REALS)
    read, arrow, result = equation.partition("->")
    terms = read.split(",")
    is_simple = all(term.isascii() and (term.isalpha() or not term) for term in (*terms, result)) and len(set(result)) == len(result)
    need(bool(arrow) and is_simple, f"its equation is `{equation[:60]}`; write it with a letter for each axis and with its result")
    need(len(tensors) <= 2, f"it has {len(tensors)} inputs, two are allowed")
    need(len(terms) == len(tensors), f"its equation is `{equation[:60]}` for {len(tensors)} inputs")
    sizes: dict[str, int] = {}
    for letters, tensor in zip(terms, tensors, strict=True):
        need(len(letters) == len(tensor.shape), f"its equation is `{equation[:60]}` for an input of {len(tensor.shape)} axes")
        for letter, size in zip(letters, tensor.shape, strict=True):
            need(sizes.setdefault(letter, size) == size, f"its axis `{letter}` has two sizes")
    need(set(result) <= sizes.keys(), f"its equation is `{equation[:60]}`")
    return result_cost([sizes[letter] for letter in result], math.prod(sizes.values()), node.tensor(0).type)


#: Directions of a recurrent layer, and the number of passes of each.
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def _recurrent(node: ShapeNode, gates: int, states: int) -> Cost:
    """Return the shapes of the outputs of all steps, and of the last states (ONNX operators, LSTM, GRU and RNN).

    Args:
        node: The recurrent layer.
        gates: Products with the input per step.
        states: Tensors passed from step to step.
    """
    x = node.tensor(0, REALS)
    need(len(x.shape) == 3, f"its input has the shape {list(x.shape)}")
    need(not node.integer("layout", 0), "its batch comes first")
    direction = node.string("direction", "forward")
    need(direction in _DIRECTIONS, f"its direction is `{direction[:20]}`")
    (steps, batch, width), directions, size = x.shape, _DIRECTIONS[direction], node.integer("hidden_size", 0)
    need(size > 0, f"its hidden_size is {size}")
    state, rows = (directions, batch, size), gates * size
    need(node.tensor(1, REALS).shape == (directions, rows, width), f"its weights have the shape {list(node.shape(1))}")
    need(node.tensor(2, REALS).shape == (directions, rows, size), f"its recurrent weights have the shape {list(node.shape(2))}")
    need(node.optional(4) is None, "its sequences have lengths of their own")
    expected = {3: (directions, 2 * rows), **{5 + i: state for i in range(states)}, **({7: (directions, 3 * size)} if states == 2 else {})}
    need(len(node.inputs) <= 1 + max(expected), f"it has {len(node.inputs)} inputs")
    for i, shape in expected.items():
        tensor = node.optional(i)
        need(tensor is None or (tensor.type in REALS and tensor.shape == shape), f"its input {i} is not of the shape {list(shape)}")
    need(1 <= node.results <= 1 + states, f"it has {node.results} results")
    outputs = (KnownTensor((steps, directions, batch, size), x.type), *[KnownTensor(state, x.type)] * states)
    return Cost(outputs[: node.results], steps * batch * directions * rows * (width + size))


_LAYERS = {"GRU": (3, 1), "LSTM": (4, 2), "RNN": (1, 1)}
RULES.update({op: partial(_recurrent, gates=gates, states=states) for op, (gates, states) in _LAYERS.items()})


#: Maximum number of elements that a convolution may copy for a matrix product: four gigabytes of reals.
MAX_COLUMNS = 1 << 30


def _image(node: ShapeNode, types: frozenset[int] = REALS) -> KnownTensor:
    """Return input 0, which must have a batch, channels, and one to three further axes."""
    x = node.tensor(0, types)
    need(3 <= len(x.shape) <= 5, f"its input has the shape {list(x.shape)}")
    return x


def _pads(node: ShapeNode, axes: int) -> tuple[int, ...]:
    need(node.string("auto_pad", "NOTSET") == "NOTSET", "its padding is automatic")
    return node.ints("pads", (0,) * (2 * axes), 0)


def _windows(node: ShapeNode, kernel: tuple[int, ...], image: Shape) -> Shape:
    """Return the number of window positions along each axis of an image."""
    axes = len(kernel)
    strides, dilations = node.ints("strides", (1,) * axes, 1), node.ints("dilations", (1,) * axes, 1)
    pads, floors = _pads(node, axes), not node.integer("ceil_mode", 0)
    sizes = []
    for i, size in enumerate(image):
        room = size + pads[i] + pads[i + axes] - dilations[i] * (kernel[i] - 1) - 1
        need(room >= 0, f"its window of {_product(kernel)} is larger than its input")
        steps = room // strides[i] if floors else -(-room // strides[i])
        # a window that would begin in the padding after the input is left out
        sizes.append(steps if not floors and steps * strides[i] >= size + pads[i] else steps + 1)
    return tuple(sizes)


def _product(sizes: Shape) -> str:
    return " × ".join(map(str, sizes))


@rule("Conv")
def _conv(node: ShapeNode) -> Cost:
    x, w = _image(node), node.shape(1)
    need(len(x.shape) == len(w), f"its input and weight have the shapes {list(x.shape)} and {list(w)}")
    groups, channels = node.integer("group", 1), x.shape[1]
    need(groups >= 1 and channels == w[1] * groups and w[0] % groups == 0, f"{groups} groups do not divide {channels} and {w[0]} channels")
    _check_kernel(node, w, w[0])
    size = _windows(node, w[2:], x.shape[2:])
    columns = math.prod(size) * math.prod(w[1:])
    _check_columns(columns, w, x.shape)
    return result_cost((x.shape[0], w[0], *size), x.shape[0] * w[0] * columns, x.type)


@rule("ConvTranspose")
def _conv_transpose(node: ShapeNode) -> Cost:
    x, w = _image(node), node.shape(1)
    axes = len(w) - 2
    need(len(x.shape) == len(w), f"its input and weight have the shapes {list(x.shape)} and {list(w)}")
    groups = node.integer("group", 1)
    need(groups >= 1 and x.shape[1] == w[0] and w[0] % groups == 0, f"{groups} groups do not divide {x.shape[1]} channels")
    need("output_shape" not in node.attrs, "it states its output_shape")
    _check_kernel(node, w, w[1] * groups)
    strides, dilations = node.ints("strides", (1,) * axes, 1), node.ints("dilations", (1,) * axes, 1)
    pads, output_padding = _pads(node, axes), node.ints("output_padding", (0,) * axes, 0)
    need(all(output_padding[i] < strides[i] for i in range(axes)), f"its output_padding is {list(output_padding)}")
    size = [
        strides[i] * (n - 1) + output_padding[i] + dilations[i] * (w[i + 2] - 1) + 1 - pads[i] - pads[i + axes]
        for i, n in enumerate(x.shape[2:])
    ]
    columns = math.prod(x.shape[2:]) * math.prod(w[1:]) * groups
    _check_columns(columns, w, x.shape)
    return result_cost((x.shape[0], w[1] * groups, *size), math.prod(x.shape) * math.prod(w[1:]), x.type)


def _check_kernel(node: ShapeNode, weight: Shape, channels: int) -> None:
    need(all(n > 0 for n in weight), f"its weight has the shape {list(weight)}")
    need(node.attrs.get("kernel_shape", list(weight[2:])) == list(weight[2:]), "its kernel_shape is not that of its weight")
    bias = node.optional(2)
    need(bias is None or bias.shape == (channels,), "its bias is not one number a channel")


def _check_columns(columns: int, weight: Shape, x: Shape) -> None:
    need(columns <= MAX_COLUMNS, f"its kernel of {_product(weight[2:])} on {_product(x[2:])} pixels is too much")


def _pool(node: ShapeNode, types: frozenset[int]) -> tuple[KnownTensor, int]:
    """Return the output of a pool, and the number of elements of its window."""
    x = _image(node, types)
    axes = len(x.shape) - 2
    kernel, pads = node.ints("kernel_shape", (0,) * axes, 1), _pads(node, axes)
    need(all(pad < kernel[i % axes] for i, pad in enumerate(pads)), "its padding is larger than its window")
    return KnownTensor((*x.shape[:2], *_windows(node, kernel, x.shape[2:])), x.type), math.prod(kernel)


@rule("AveragePool")
def _average_pool(node: ShapeNode) -> Cost:
    pooled, taps = _pool(node, REALS)
    return Cost((pooled,), pooled.size * taps)


@rule("MaxPool")
def _max_pool(node: ShapeNode) -> Cost:
    """Return the largest element of each window, and, if requested, its position."""
    pooled, taps = _pool(node, REALS | BYTES)
    return Cost((pooled, KnownTensor(pooled.shape, INT64))[: node.results], pooled.size * taps)


@rule("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: ShapeNode) -> Cost:
    x = _image(node)
    return result_cost((*x.shape[:2], *[1] * (len(x.shape) - 2)), x.size, x.type)


@rule("Col2Im")
def _columns_to_image(node: ShapeNode) -> Cost:
    """Return the cost of adding up windows, (n, channels · window, windows), where they overlap in an image."""
    x, image, kernel = node.tensor(0, REALS), tuple(node.numbers(1)), tuple(node.numbers(2))
    need(
        1 <= len(image) == len(kernel) <= 3 and min(*image, *kernel) > 0, f"it makes an image of {_product(image)} with {_product(kernel)}"
    )
    shape = (math.prod(kernel), math.prod(_windows(node, kernel, image)))
    fits = len(x.shape) == 3 and x.shape[1] % shape[0] == 0 and x.shape[2] == shape[1]
    need(fits, f"its input has the shape {list(x.shape)} for {shape[1]} windows of {shape[0]} pixels")
    return result_cost((x.shape[0], x.shape[1] // shape[0], *image), x.size, x.type)


@rule("LpPool")
def _lp_pool(node: ShapeNode) -> Cost:
    need(1 <= node.integer("p", 2) <= MAX_STEP, "its p is no small number")
    return _average_pool(node)

"""Normalisations, and softmax, which normalises a sum to one."""

from collections.abc import Mapping

from scheduler.formats.onnx.shapes.node import FLOAT, MAX_STEP, REALS, Cost, KnownTensor, Rule, ShapeNode, broadcast, like, need


def _batch_norm(node: ShapeNode) -> Cost:
    x = node.tensor(0, REALS)
    need(not node.whole("training_mode", 0) and node.results == 1, "it is in training mode")
    need(len(x.shape) >= 2 and all(node.shape(i) == (x.shape[1],) for i in range(1, 5)), "its statistics are not one number a channel")
    return like(x)


def _layer_norm(node: ShapeNode) -> Cost:
    """The result, and the mean and the inverse deviation where they are asked for."""
    x, rank = node.tensor(0, REALS), len(node.shape(0))
    axis = node.axis("axis", -1, rank)
    normalised = x.shape[axis:]
    for weight in (node.tensor(1), node.optional(2)):
        fits = weight is None or broadcast([weight.shape, normalised]) == normalised
        need(fits, "its weights do not fit the axes that it normalises")
    statistics = KnownTensor((*x.shape[:axis], *[1] * (rank - axis)), FLOAT)
    return Cost((KnownTensor(x.shape, x.type), statistics, statistics)[: node.results], 4 * x.size)


def _group_norm(node: ShapeNode) -> Cost:
    x, groups = node.tensor(0, REALS), node.whole("num_groups", 0)
    need(len(x.shape) >= 3 and groups > 0 and x.shape[1] % groups == 0, f"{groups} groups do not divide {list(x.shape)}")
    # Before opset 21 it has a weight a group.
    size = node.shape(1)
    need(size in ((groups,), (x.shape[1],)) and node.shape(2) == size, "its weights are not one number a channel")
    return like(x, 4)


def _instance_norm(node: ShapeNode) -> Cost:
    x = node.tensor(0, REALS)
    need(len(x.shape) >= 3, f"its input has the shape {list(x.shape)}")
    need(all(node.shape(i) == (x.shape[1],) for i in (1, 2)), "its weights are not one number a channel")
    return like(x, 4)


def _along_axis(default: int) -> Rule:
    def rule(node: ShapeNode) -> Cost:
        x = node.tensor(0, REALS)
        node.axis("axis", default, len(x.shape))
        return like(x, 4)

    return rule


def _lrn(node: ShapeNode) -> Cost:
    x, size = node.tensor(0, REALS), node.whole("size", 0)
    need(len(x.shape) >= 3 and 0 < size <= MAX_STEP, f"its size is {size}")
    return like(x, size)


RULES: Mapping[str, Rule] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _along_axis(-1),
    "LpNormalization": _along_axis(-1),
    "Softmax": _along_axis(-1),
}

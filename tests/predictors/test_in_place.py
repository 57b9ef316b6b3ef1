"""Tensors side by side are copied where the backend copies them."""

from predictors.fusion import fuse
from predictors.in_place import copied_parts
from tests.predictors.networks import Net


def dense(widths, first=8, size=6):
    """Each layer reads all that came before, side by side, as in DenseNet."""
    net = Net(1, first, size, size)
    known = [net.conv(first, 3)]
    for width in widths:
        known.append(net.conv(width, 3))
        net.add("concat", *known)
    net.conv(8, 3)
    return net.graph("dense")


def test_of_several_concatenations_the_first_has_a_tensor_in_place():
    graph = dense((8, 8))
    first, second = (op for op in graph.ops if op.kind == "concat")
    copied = copied_parts(graph, {"concat"}, {"input"}, 4)
    assert copied == {first.name: [], second.name: list(second.inputs[:2])}


def test_part_that_does_not_end_with_a_block_is_copied_unless_it_is_the_last():
    graph = dense((6,))
    (concat,) = (op for op in graph.ops if op.kind == "concat")
    assert copied_parts(graph, {"concat"}, {"input"}, 4) == {concat.name: []}
    graph = dense((8,), first=6)
    (concat,) = (op for op in graph.ops if op.kind == "concat")
    assert copied_parts(graph, {"concat"}, {"input"}, 4) == {concat.name: list(concat.inputs)}


def test_normalisation_of_what_lies_side_by_side_is_not_folded_into_a_part():
    net = Net(1, 8, 6, 6)
    one = net.conv(8, 3, act=None)
    two = net.conv(8, 3, act=None)
    net.add("concat", one, two)
    net.add("batch_norm", eps=1e-5, momentum=0.1, affine=True)
    net.add("relu")
    kernels = fuse(net.graph("g"), "opencl")
    assert [kernel.cost.kind for kernel in kernels] == ["conv", "conv", "elementwise"]

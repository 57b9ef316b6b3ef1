import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from tests.scheduler.formats.onnx.shapes.oracle import Case, agrees, reals, rule, shapes, sizes, whole

X = (1, 3, 8, 8)


@given(shapes, st.data())
def test_reshape_keeps_sizes_and_works_one_out(shape, data):
    wanted = list(data.draw(st.permutations(shape)))
    if data.draw(st.booleans()):
        wanted[data.draw(st.integers(0, len(shape) - 1))] = -1
    kept = list(shape)
    kept[0] = 0
    for sizes_ in (wanted, kept, [-1], [1, *wanted]):
        agrees(Case("Reshape", [reals(shape), whole(*sizes_)], stored=(1,)))
    agrees(Case("Reshape", [reals(shape), whole(*shape)], {"allowzero": 1}, stored=(1,)))


@given(shapes, st.data())
def test_axes_of_one_are_dropped_and_added_again(shape, data):
    places = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    ones = tuple(1 if i in places else n for i, n in enumerate(shape))
    signed = [i - len(shape) if data.draw(st.booleans()) else i for i in places]
    agrees(Case("Squeeze", [reals(ones), whole(*signed)], stored=(1,)))
    agrees(Case("Squeeze", [reals(ones)]))
    agrees(Case("Squeeze", [reals(ones)], {"axes": places}, opset=11))
    rank = len(shape) + len(places)
    added = sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=len(places))))
    rank = len(shape) + len(added)
    added = [i for i in added if i < rank]
    added += [i for i in range(rank) if i not in added][: rank - len(shape) - len(added)]
    signed = [i - rank if data.draw(st.booleans()) else i for i in added]
    agrees(Case("Unsqueeze", [reals(shape), whole(*signed)], stored=(1,)))


@given(sizes, sizes, sizes, sizes, st.integers(1, 3), st.sampled_from(["DCR", "CRD"]))
def test_blocks_and_channels_are_exchanged(n, c, h, w, block, mode):
    agrees(Case("DepthToSpace", [reals((n, c * block**2, h, w))], {"blocksize": block, "mode": mode}))
    agrees(Case("SpaceToDepth", [reals((n, c, h * block, w * block))], {"blocksize": block}))


@pytest.mark.parametrize(
    ("op", "given_node", "problem"),
    [
        ("Flatten", ([X], {"axis": 5}), "its axis is 5"),
        ("Reshape", ([X, (1,)], {}, {1: [10**12]}), "it makes"),
        ("Reshape", ([X, (2,)], {}, {1: [-1, -1]}), "it makes"),
        ("Reshape", ([X, (2,)], {}, {1: [-1, 5]}), "it makes"),
        ("Reshape", ([X, (2,)], {}, {1: [-2, 96]}), "it makes"),
        ("Reshape", ([X, (5,)], {}, {1: [1, 3, 8, 8, 0]}), "it makes"),
        ("Reshape", ([X, (2,)], {"allowzero": 1}, {1: [0, -1]}), "it makes"),
        ("Reshape", ([X, (1,)],), "no short constant"),
        ("Transpose", ([X], {"perm": [0, 0, 1, 2]}), "order of axes"),
        ("Transpose", ([X], {"perm": 3}), "its perm"),
        ("Squeeze", ([X, (1,)], {}, {1: [1]}), r"drops axes \[1\]"),
        ("Squeeze", ([X, (1,)], {}, {1: [4]}), "its axes is 4"),
        ("Unsqueeze", ([X, (1,)], {}, {1: [99]}), "its axes is 99"),
        ("Unsqueeze", ([X, (2,)], {}, {1: [1, -5]}), "are there twice"),
        ("Unsqueeze", ([X],), "which axes"),
        ("DepthToSpace", ([X], {"blocksize": 2}), "blocks of 2"),
        ("DepthToSpace", ([X],), "blocks of 0"),
        ("SpaceToDepth", ([X], {"blocksize": 3}), "blocks of 3"),
    ],
)
def test_layout_that_does_not_fit_is_refused(op, given_node, problem):
    with pytest.raises(StretchError, match=problem):
        rule(op, *given_node)

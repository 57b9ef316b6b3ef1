import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stretch.profiling.drawing import Drawing


def start(activation="relu", size=32):
    made = Drawing(np.random.default_rng(0), activation)
    made.add("input", shape=(1, 16, size, size))
    return made


def test_shapes_are_those_of_the_finished_graph():
    made = start()
    x = made.squeeze(made.depthwise(made.unit(made.last, 24, 3, 2), 5))
    made.pool(x)
    shapes = dict(made.shapes)
    graph = made.finish("net")
    assert {op.name: op.shape for op in graph.ops if op.name in shapes} == shapes


@given(st.integers(0, 1000), st.integers(8, 64), st.integers(65, 2000))
def test_widths_are_near_their_bounds_and_never_below_the_lower(seed, low, high):
    made = Drawing(np.random.default_rng(seed), "relu")
    assert low <= made.width(low, high) <= high + 16


def test_windows_keep_the_size_or_halve_it():
    made = start(size=31)
    assert made.shapes[made.conv("x", 8, 3)] == (1, 8, 31, 31)
    assert made.shapes[made.conv("x", 8, 7, across=1)] == (1, 8, 31, 31)
    assert made.shapes[made.conv("x", 8, 5, 2)] == (1, 8, 16, 16)

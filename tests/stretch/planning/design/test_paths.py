"""Parallel paths of a network are found, and branches made of them compute the network's results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import scaled_graph
from stretch.planning.divisions.paths import find_paths, path_graph
from stretch.planning.network.segments import cut_segment
from tests.predictors.networks import convolution
from tests.stretch.designs import whole


def conv(name, source, out=4):
    return convolution(name, source, out, 3, bias=True)


def joined(ends, kind, *ops):
    return OpGraph.build("net", [Op("x", "input", attrs={"shape": (1, 4, 6, 6)}), *ops, Op("end", kind, tuple(ends))], "end")


def test_paths_that_share_an_operator_are_one_path():
    ops = [conv("stem", "x"), conv("a", "stem"), conv("b", "x"), conv("c", "stem"), conv("d", "x")]
    assert find_paths(joined(("a", "b", "c", "d"), "concat", *ops)) == ((0, 3), (3, 4))


@given(st.lists(st.integers(1, 3), min_size=2, max_size=6), st.data())
def test_any_division_of_paths_has_each_operator_once(depths, data):
    ops, ends = [], []
    for i, depth in enumerate(depths):
        source = "x"
        for j in range(depth):
            ops.append(conv(f"p{i}_{j}", source))
            source = ops[-1].name
        ends.append(source)
    graph = joined(ends, "concat", *ops)
    assert len(find_paths(graph)) == len(depths)
    cut = data.draw(st.integers(1, len(depths) - 1))
    parts = [path_graph(graph, "s", 0, cut), path_graph(graph, "s", cut, len(depths))]
    convolutions = [op.name for part in parts for op in part.ops if op.kind == "conv"]
    assert (sorted(convolutions), sum(part.macs for part in parts)) == (sorted(op.name for op in ops), graph.macs)
    assert sum(part.by_name[part.output].shape[1] for part in parts) == graph.by_name["end"].shape[1]


@pytest.mark.parametrize("parts", [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(1, 3), (0, 1)], [(0, 3), (3, 3)], [(0, 2)]])
def test_paths_left_out_or_computed_twice_are_refused(parts):
    graph = joined(("a", "b", "c"), "concat", conv("a", "x"), conv("b", "x"), conv("c", "x"))
    segment = cut_segment(graph, "s1", "x", "end")
    branches = tuple(BranchScale(f"p{i}", segment.depth, segment.width, paths=part) for i, part in enumerate(parts))
    design = BranchDesign("net", "test", (SegmentDesign("s1", "x", "end", branches, "paths" if len(parts) > 1 else "none"),))
    with pytest.raises(StretchError, match="paths"):
        scaled_graph(graph, design)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(("model", "kind"), [("googlenet", "concat"), ("resnet18", "add")])
def test_branches_of_paths_compute_what_the_network_computes(captured, model, kind):
    torch = pytest.importorskip("torch")
    from stretch.network.capture import capture
    from stretch.transform import build

    result = captured(model)
    graph, parts = result.graph, []
    at = graph.input.name
    for name, start, end in parts_with_paths(graph, kind):
        if at != start:
            parts.append(whole(cut_segment(graph, f"{name}_before", at, start)))
        segment = cut_segment(graph, name, start, end)
        count = len(find_paths(segment.graph))
        branches = [BranchScale(p, segment.depth, segment.width, paths=r) for p, r in (("cpu", (0, 1)), ("gpu", (1, count)))]
        parts.append(SegmentDesign(name, start, end, tuple(branches), "paths" if kind == "concat" else "terms"))
        at = end
    assert parts
    parts.append(whole(cut_segment(graph, "rest", at, graph.output)))
    built = build(result, BranchDesign(graph.name, "test", tuple(parts)))
    x = torch.randn(graph.input.shape, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        want, got = result.module(x), built(x)
    assert (got - want).abs().max() <= 1e-6 * want.abs().max()
    assert (built.graph.macs, capture(built, graph.input.shape, graph.name).graph) == (graph.macs, built.graph)


def parts_with_paths(graph, kind):
    """Parts of a network with parallel paths that each compute something."""
    from itertools import pairwise

    from stretch.planning.network.segments import cut_points

    number = 0
    for start, end in pairwise(cut_points(graph)):
        segment = cut_segment(graph, "s", start, end)
        paths, inputs = find_paths(segment.graph), graph.by_name[end].inputs
        if graph.by_name[end].kind == kind and paths and start not in inputs:
            number += 1
            yield f"s{number}", start, end

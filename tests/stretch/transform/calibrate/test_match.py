import pytest

torch = pytest.importorskip("torch")

from stretch.planning.design.depth import drop_units  # noqa: E402 - torch may be missing
from stretch.planning.network.segments import split_segments  # noqa: E402
from stretch.transform.calibrate.match import candidate_matches  # noqa: E402

pytestmark = pytest.mark.torch


def deep_segment(captured):
    graph = captured("resnet20_cifar10").graph
    return next(s for s in split_segments(graph) if s.name == "s2")


def test_another_branch_takes_the_last_blocks_and_keeps_its_entry_block(captured):
    segment = deep_segment(captured)
    assert segment.depth == 3
    ways = candidate_matches(segment, [drop_units(segment, 2), drop_units(segment, 2)])
    assert ways[0] == [{}, {}]
    first, second, third = segment.blocks
    late = dict(zip(second.ops, third.ops, strict=True))
    # The entry block changes the shape, so no other block can take its place.
    assert not set(late) & set(first.ops)
    assert ways[1:] == [[{}, late], [late, {}]]


def test_blocks_of_another_structure_are_not_matched(captured):
    graph = captured("tiny_efficientnet").graph
    for segment in split_segments(graph):
        for way in candidate_matches(segment, [drop_units(segment, segment.min_depth)] * 2):
            for matches in way:
                for own, other in matches.items():
                    a, b = segment.graph.by_name[own], segment.graph.by_name[other]
                    assert (a.kind, a.shape, a.attrs) == (b.kind, b.shape, b.attrs)

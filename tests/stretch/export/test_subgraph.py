"""Subgraphs: together every operator of the branched graph once, each a graph that reads what others write."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from stretch.export.subgraph import entry_rows, subgraph_names, subgraph_of  # noqa: E402
from stretch.planning.design.scale import scaled_graph  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.stretch.designs import random_designs  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(st.data())
def test_subgraphs_have_every_operator_but_joins_once_and_read_what_others_write(captured, data):
    found = captured("tiny_resnet")
    graph = scaled_graph(found.graph, data.draw(random_designs(found.graph)))
    pieces = {name: subgraph_of(graph, name) for name in subgraph_names(graph)}
    inside = [op.name for piece in pieces.values() for op in piece.ops if op.kind != "input"]
    joins = {op.name for op in graph.ops if op.tags.get("meeting_point") == "true"}
    assert len(inside) == len(set(inside))
    assert set(inside) == {op.name for op in graph.ops if op.kind != "input"} - joins
    there = {graph.input.name} | joins
    for name, piece in pieces.items():
        assert {op.name for op in piece.inputs} <= there
        there |= set(piece.outputs)
        assert entry_rows(graph, name) is None
    assert graph.output in there

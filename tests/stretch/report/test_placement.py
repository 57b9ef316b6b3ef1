import io

import pytest
from rich.console import Console

from stretch.report.placement import operator_table, subgraph_table
from stretch.stages.explain import PlacedOperator, PlacedSubgraph


def printed(renderable, width):
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, markup=False, emoji=False).print(renderable)
    return stream.getvalue()


def rows(count, name="s2_to_s6_gpu_features_7_block_2_fc1_conv"):
    return [
        PlacedOperator(
            name=f"{name}_{i}",
            op="GlobalAveragePool",
            subgraph="s2_to_s6.gpu" if i < count // 2 else "head",
            processor="gpu",
            delegate="tflite_gpu",
            ms=12.345 + i,
            reason=f"merged into `{name}_0` by tflite_gpu",
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("width", [60, 100])
def test_every_name_kind_and_number_stands_whole_at_any_width(width):
    text = printed(operator_table(rows(6), "mi9"), width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for row in rows(6):
        assert f"{row.ms:.3f}" in text
        assert row.op in text
        assert row.reason.split()[-1] in text
        if width >= 80:
            assert row.name in text
        assert row.subgraph in text


def test_reason_of_neighbours_is_said_once_in_a_subgraph_where_the_terminal_is_narrow():
    narrow, wide = (printed(operator_table(rows(6), "mi9"), width) for width in (80, 300))
    assert narrow.count("merged into") == 2
    assert wide.count("merged into") == 6


@pytest.mark.parametrize("width", [70, 200])
def test_subgraphs_keep_their_numbers(width):
    found = [
        PlacedSubgraph(name="s2_to_s6.cpu", segment="s2", processor="cpu[1large3med]", macs=12_345_678_901, planned_ms=117.79, ms=None),
        PlacedSubgraph(name="head", segment="head", processor="gpu", macs=5, planned_ms=None, ms=0.5),
    ]
    text = printed(subgraph_table(found, "this machine", "mi9"), width)
    for word in ("s2_to_s6.cpu", "cpu[1large3med]", "12,345,678,901", "117.79", "0.50"):
        assert word in text
    assert ("planned ms on mi9" in text) == (width == 200)

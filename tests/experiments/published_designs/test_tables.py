"""Stage tables of pycls become design files and come back, and widths are those that pycls builds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.published_designs.tables import ORIGINALS, STEP, StageTable, compatible, differences, draft_of, tables_of
from predictors.errors import StretchError
from stretch.planning.design.branch_design import design_to_toml, load_draft
from stretch.planning.design.resolve import resolve_design
from stretch.planning.design.scale import scaled_branches
from tests.effort import examples
from tests.predictors.networks import resnet50

GRAPH = resnet50()
ORIGINAL = ORIGINALS["resnet50"].table
ALIGN = {"cpu": 8, "gpu": 4, "dsp": 32}


def resolved(branches, **options):
    return resolve_design(draft_of(GRAPH, branches, "cpu", **options), GRAPH, "mi9", ALIGN, "cpu")


@st.composite
def branch(draw):
    """A branch of ResNet-50, its widths in steps of pycls's bottlenecks: four times a multiple of eight."""
    depths = tuple(draw(st.integers(1, most)) for most in ORIGINAL.depths)
    widths = tuple(4 * STEP * draw(st.integers(1, width // (4 * STEP))) for width in ORIGINAL.widths)
    return StageTable(depths, widths)


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(cpu=branch(), gpu=branch())
def test_any_two_branches_come_back_as_they_were(tmp_path_factory, cpu, gpu):
    branches = {"cpu": cpu, "gpu": gpu}
    design = resolved(branches)
    assert tables_of(GRAPH, design) == branches
    assert differences(GRAPH, design, branches) == []
    # a written file says the same
    path = tmp_path_factory.mktemp("design") / "design.toml"
    path.write_text(design_to_toml(design))
    assert resolve_design(load_draft(path), GRAPH, "mi9", ALIGN, "cpu") == design


def pycls_macs(table, pixels, arriving):
    """Oracle: multiply-accumulates of ResNet-50's stages by the formula of a bottleneck, each branch reading all channels that arrive."""
    total = 0
    for stage, (depth, width) in enumerate(zip(table.depths, table.widths, strict=True)):
        before = pixels
        pixels //= ORIGINAL.strides[stage]
        hidden, into = width // 4, arriving[stage]
        for block in range(depth):
            first = block == 0
            total += into * hidden * (before**2 if first else pixels**2) + 9 * hidden**2 * pixels**2 + hidden * width * pixels**2
            total += into * width * pixels**2 if first else 0
            into = width
    return total


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None)
@given(cpu=branch(), gpu=branch())
def test_branches_have_the_multiply_accumulates_of_the_formula(cpu, gpu):
    design = resolved({"cpu": cpu, "gpu": gpu})
    sums = [a + b for a, b in zip(cpu.widths, gpu.widths, strict=True)]
    arriving = (64, *sums[:-1])
    stages = scaled_branches(GRAPH, design)[1:-1]
    for at, table in enumerate((cpu, gpu)):
        assert sum(part[at].graph.macs for part in stages) == pycls_macs(table, 56, arriving)


@pytest.mark.parametrize(
    ("width", "multiplier", "group", "expected"),
    [(56, 1.0, 24, (48, 48, 24)), (16, 1.0, 24, (16, 16, 16)), (100, 0.25, 8, (96, 24, 8)), (24, 6.0, 8, (24, 144, 8))],
)
def test_blocks_are_brought_in_line_as_pycls_does(width, multiplier, group, expected):
    assert compatible(width, multiplier, group) == expected


@given(width=st.integers(1, 4096), multiplier=st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0]), group=st.integers(1, 128))
def test_hidden_channels_are_always_whole_groups(width, multiplier, group):
    made, hidden, own = compatible(width, multiplier, group)
    assert hidden % own == 0
    assert made >= 1
    assert own <= group


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (StageTable((3, 4, 6), (256, 512, 1024)), "has 3 stages, the network 4"),
        (StageTable((4, 4, 6, 3), ORIGINAL.widths), "has 4 blocks in stage 1, the network 3"),
        (StageTable(ORIGINAL.depths, ORIGINAL.widths, multipliers=(0.5,) * 4), "has the multipliers"),
    ],
)
def test_table_of_another_network_is_refused(table, reason):
    with pytest.raises(StretchError, match=reason):
        draft_of(GRAPH, {"cpu": table}, "cpu")

"""Published designs: files that hold them, stage tables, and predictions beside what was measured."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.published_designs.tables import ORIGINALS, STEP, StageTable, compatible, differences, draft_of, tables_of
from predictors.errors import StretchError
from stretch.planning.design.branch_design import design_to_toml, load_draft
from stretch.planning.design.scale import resolve_design, scaled_branches
from tests.effort import examples
from tests.predictors.networks import resnet50

pytest.importorskip("torch")

from experiments.published_designs.designs_file import read_designs
from experiments.published_designs.predict import Basis, errors, predict

HEAD = "design,model,ms,cpu depths,cpu widths,cpu ms,gpu depths,gpu widths\n"
ROW = 'a,ResNet-50,20.5,3 4 6 3,128 256 512 1024,28,"[2, 3, 4, 2]","192, 384, 768, 1536"\n'


def read(tmp_path, text):
    path = tmp_path / "designs.csv"
    path.write_text(text, encoding="utf-8")
    return read_designs(path)


def test_lists_are_read_however_they_are_written(tmp_path):
    (design,) = read(tmp_path, HEAD + ROW)
    assert design.model == "resnet50"
    assert design.device == "mi9"
    assert design.ms == 20.5
    assert design.alone == {"cpu": 28.0}
    assert design.branches == {
        "cpu": StageTable((3, 4, 6, 3), (128, 256, 512, 1024)),
        "gpu": StageTable((2, 3, 4, 2), (192, 384, 768, 1536)),
    }


@pytest.mark.parametrize(
    ("model", "cells", "changes", "rewrites"),
    [
        ("EfficientNet-B5", ",,", ("squeeze_excite=none",), {"cpu[1large]": ("silu=relu6",), "gpu": ()}),
        ("EfficientNet-B5", "none,none,none", (), {"cpu[1large]": (), "gpu": ()}),
        ("RegNetX-4GF", ",,", (), {"cpu[1large]": (), "gpu": ("grouped_conv=parts",)}),
        ("ResNet-34", ",,silu=relu6", (), {"cpu[1large]": (), "gpu": ("silu=relu6",)}),
    ],
)
def test_what_the_paper_changed_is_changed_unless_the_file_says_otherwise(tmp_path, model, cells, changes, rewrites):
    (design,) = read(tmp_path, f"design,model,network rewrites,cpu[1large] rewrites,gpu rewrites\nd,{model},{cells}\n")
    assert (design.changes, design.rewrites) == (changes, rewrites)


def test_every_column_of_the_page_is_read(tmp_path):
    head = "design,model,device,join,host,network rewrites,ms,macs,source,cpu depths,cpu widths,cpu strides,cpu group widths,cpu multipliers,cpu rewrites,cpu ms\n"
    row = "c,RegNetX-1.6GF,pixel6,project,gpu,squeeze_excite=none,9,1.5,somewhere,2 4 10 2,72 168 408 912,2 2 2 2,24 24 24 24,1 1 1 1,silu=relu6,20\n"
    (design,) = read(tmp_path, head + row)
    assert (design.device, design.join, design.host, design.changes) == ("pixel6", "project", "gpu", ("squeeze_excite=none",))
    assert (design.macs, design.source) == (1.5, "somewhere")
    assert design.branches["cpu"] == ORIGINALS["regnet_x_1_6gf"].table
    assert design.rewrites == {"cpu": ("silu=relu6",)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD + ROW + ROW, "has the design `a` twice"),
        (HEAD + ROW.replace("3 4 6 3", "three"), "line 2 .* has `three` where numbers should be"),
        (HEAD + ROW.replace("128 256 512 1024", "128 256"), "line 2 .*, `cpu`: .* 4 depths and 2 widths"),
        (HEAD + ROW.rstrip() + ",more\n", "line 2 .* more or fewer cells"),
        ("design,ms\na,1\n", "has no column `model`"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path, text, reason):
    with pytest.raises(StretchError, match=reason):
        read(tmp_path, text)


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
    built, hidden, current = compatible(width, multiplier, group)
    assert hidden % current == 0
    assert built >= 1
    assert current <= group


def test_errors_are_counted_by_their_size():
    rows = [{"error %": item, "in the interval": inside} for item, inside in ((-5.0, True), (15.0, True), (-40.0, False))]
    answer = errors(rows, "p", "designs", "error %")
    assert (answer["number"], answer["mean error %"], answer["within ±10 %"], answer["within ±20 %"], answer["in the 90 % interval"]) == (
        3,
        20.0,
        1,
        2,
        2,
    )
    assert answer["predicted ÷ measured, median"] == 0.95
    assert errors([{"error %": None}], "p", "designs", "error %") is None


@pytest.mark.slow
def test_design_of_regnet_has_the_parts_of_the_release_on_every_processor(tmp_path):
    head = "design,model,cpu depths,cpu widths,cpu rewrites,cpu ms,dsp depths,dsp widths,dsp rewrites,dsp ms\n"
    row = "{0},RegNetX-1.6GF,2 3 7 2,48 120 288 648,{1},27.45,1 3 7 1,48 120 288 648,{1},32.626\n"
    designs = read(tmp_path, head + row.format("unsaid", "") + row.format("said", "grouped_conv=parts"))
    unsaid, said = (predict(design, Basis("release")) for design in designs)
    assert unsaid.result.run.makespan_ms == pytest.approx(said.result.run.makespan_ms)
    alone = {name: unsaid.alone_ms(name) for name in ("cpu", "dsp")}
    assert alone == pytest.approx(designs[0].alone, rel=0.1)
    # branches of about half of the network each take longer than half of the time of both together, and less than one alone
    both_ms = 1 / sum(1 / ms for ms in alone.values())
    assert both_ms < unsaid.result.run.makespan_ms < min(alone.values())

"""Files of published designs are read as their page says, and what makes no sense is named with its line."""

import pytest

pytest.importorskip("torch")

from experiments.published_designs.designs_file import read_designs
from experiments.published_designs.tables import ORIGINALS, StageTable
from predictors.errors import StretchError

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

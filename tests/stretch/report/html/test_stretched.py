"""The picture of a network shows each segment as it was and as it is."""

import functools

import pytest
from msgspec.structs import replace

from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.report.html.page import Page, Section, Stretched, render
from stretch.report.html.stretched import KINDS, LONG, stretched_rows
from tests.predictors.networks import resnet50
from tests.predictors.specified import specified
from tests.stretch.report.html.reading import checked


@functools.cache
def planned(kinds):
    return plan(resnet50(), specified("mi9"), PlanConfig(processors=("cpu", "gpu"), kinds=kinds)).answer()


def drawn(rows, processors):
    return checked(render(Page("t", ["l"], sections=[Section("network", "h", (), [Stretched(rows, processors)])])))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("channels",), ("stretch", "rows")])
def test_every_branch_is_a_box_with_its_numbers(kinds):
    found = planned(kinds)
    rows, processors = stretched_rows(found)
    assert processors == ["cpu", "gpu"]
    text = drawn(rows, processors).text
    by_name = {row.name: row for row in rows}
    for segment in found.segments:
        if segment.kind == "whole":
            continue
        row = by_name[segment.name]
        assert KINDS[segment.kind] in text
        assert len(row.boxes) == len(segment.branches)
        for box, branch in zip(row.boxes, segment.branches, strict=True):
            assert box.processor == branch.processor
            assert f"{branch.predicted_ms:.2f} ms" in box.words
            assert box.words in text


def test_bands_cover_the_map_and_say_what_is_computed_twice():
    found = planned(("rows",))
    rows, _ = stretched_rows(found)
    by_name = {row.name: row for row in rows}
    divided = [segment for segment in found.segments if segment.kind == "rows"]
    assert divided
    for segment in divided:
        boxes = by_name[segment.name].boxes
        assert sum(box.share for box in boxes) == pytest.approx(100)
        assert min(box.top for box in boxes) == 0
        assert any("computed twice" in box.words for box in boxes) == any(box.halo > 0 for box in boxes)
        extra = sum(branch.macs for branch in segment.branches) - segment.macs
        assert (extra > 0.01 * segment.macs) <= any(box.halo > 0 for box in boxes)


def test_chains_are_as_high_as_blocks_are_many():
    found = planned(("stretch",))
    rows, _ = stretched_rows(found)
    for segment in found.segments:
        for row in rows:
            if row.name == segment.name and segment.kind == "stretch":
                heights = {box.blocks: box.height for box in row.boxes} | {row.blocks: row.height}
                each = {round(height / blocks, 6) for blocks, height in heights.items()}
                assert len(each) == 1


def test_hundreds_of_whole_segments_are_one_row():
    found = planned(("stretch",))
    whole = next(s for s in found.segments if s.kind == "whole") if any(s.kind == "whole" for s in found.segments) else None
    part = whole or replace(found.segments[0], kind="whole", branches=found.segments[0].branches[:1])
    many = replace(found, segments=[replace(part, name=f"s{i}") for i in range(500)])
    rows, processors = stretched_rows(many)
    assert [row.name for row in rows] == ["s0 to s499"]
    assert "500 segments" in drawn(rows, processors).text
    few = replace(found, segments=[replace(part, name=f"s{i}") for i in range(LONG - 1)])
    assert len(stretched_rows(few)[0]) == LONG - 1

"""Networks in bands of rows compute what the original computes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from hypothesis import given  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from stretch.capture import capture  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.design.scale import scaled_graph  # noqa: E402
from stretch.planning.network.segments import split_segments  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.stretch.band_networks import banded, networks  # noqa: E402
from tests.stretch.designs import whole  # noqa: E402

pytestmark = pytest.mark.torch


def image(found):
    return torch.randn(found.graph.input.shape, generator=torch.Generator().manual_seed(1))


def same(got, want):
    return np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.slow
@given(data=st.data())
def test_bands_built_and_captured_are_the_scaled_graph_and_the_original(data):
    found = data.draw(networks())
    design = data.draw(banded(found.graph))
    model, x = build(found, design), image(found)
    assert capture(model, found.graph.input.shape, found.graph.name).graph == scaled_graph(found.graph, design)
    with torch.inference_mode():
        assert same(model(x).numpy(), found.module(x).numpy())


def test_bands_behind_a_wider_trunk_read_all_of_it(captured):
    """A segment that joins by `concat` changes how many channels arrive."""
    found = captured("tiny_mobilenet")
    segments = split_segments(found.graph)
    at = next(i for i, s in enumerate(segments) if s.branchable and i + 1 < len(segments) and segments[i + 1].dense_input)
    before, after = segments[at], segments[at + 1]
    rows = after.graph.by_name[after.end].shape[2]
    bands = tuple(BranchScale(p, after.depth, after.width, rows=r) for p, r in (("cpu", (0, rows // 2)), ("gpu", (rows // 2, rows))))
    two = tuple(BranchScale(p, before.depth, before.width) for p in ("cpu", "gpu"))

    def design(second):
        first = SegmentDesign(before.name, before.start, before.end, two, "concat")
        parts = [first if s is before else second if s is after else whole(s) for s in segments]
        return BranchDesign(found.graph.name, "test", tuple(parts))

    x = image(found)
    with torch.inference_mode():
        got = build(found, design(SegmentDesign(after.name, after.start, after.end, bands, "rows")))(x)
        want = build(found, design(whole(after)))(x)
    assert same(got.numpy(), want.numpy())

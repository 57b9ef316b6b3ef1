"""A branched network follows its original on images without labels, and is never further from it than it was."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign  # noqa: E402
from stretch.planning.network.segments import split_segments  # noqa: E402
from stretch.train.unlabelled import refine_unlabelled  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.stretch.designs import cpu_and, identity_design, random_designs, whole  # noqa: E402

pytestmark = pytest.mark.torch


def images(found, count=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(count, *found.graph.input.shape[1:], generator=generator).split(16))


def others(found):
    return images(found, 10, seed=7)


def divergence(model, found, batches):
    """Of softened scores, by torch's own loss, on the images that choose."""
    x = torch.cat(batches)
    with torch.no_grad():
        ours, theirs = (net(x).log_softmax(1) for net in (model.eval(), found.module.eval()))
    return float(torch.nn.functional.kl_div(ours, theirs, reduction="batchmean", log_target=True))


def test_network_comes_closer_to_its_original(captured):
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, "project"))
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    before = divergence(model, found, others(found))
    told = refine_unlabelled(model, found, images(found), others(found), steps=8)
    assert told.before == pytest.approx(before, rel=1e-3)
    assert told.after == pytest.approx(divergence(model, found, others(found)), rel=1e-3)
    assert told.after < told.before
    assert (told.steps, model.training) == (8, False)


@settings(max_examples=4)
@given(st.data())
def test_any_design_is_never_further_from_the_original_than_it_was(captured, data):
    found = captured("tiny_resnet")
    model = build(found, data.draw(random_designs(found.graph)))
    before = divergence(model, found, others(found))
    told = refine_unlabelled(model, found, images(found), others(found), steps=1, seed=data.draw(st.integers(0, 3)))
    assert divergence(model, found, others(found)) <= before * (1 + 1e-4) + 1e-6
    assert told.after <= told.before


def test_the_original_itself_stays_what_it_is(captured):
    found = captured("tiny_resnet")
    model = build(found, identity_design(found.graph))
    refine_unlabelled(model, found, images(found), others(found), steps=2)
    x = images(found, seed=3)[0]
    with torch.no_grad():
        assert torch.allclose(model(x), found.module.eval()(x), atol=1e-4)


def test_same_seed_and_steps_give_the_same_weights(captured):
    found = captured("tiny_resnet")
    states = []
    for _ in range(2):
        model = build(found, cpu_and("gpu", found.graph, "sum"))
        refine_unlabelled(model, found, images(found), others(found), steps=3, seed=1)
        states.append(model.state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_bands_of_rows_keep_one_set_of_weights(captured):
    found = captured("tiny_resnet")
    parts = [whole(segment) for segment in split_segments(found.graph)]
    first, second = (i for i, s in enumerate(split_segments(found.graph)) if s.branchable and i < 3)
    stretched = cpu_and("gpu", found.graph, "project").segments[second]
    segment = split_segments(found.graph)[first]
    rows = found.graph.by_name[segment.end].shape[2]
    bands = tuple(
        BranchScale(name, segment.depth, segment.width, rows=part) for name, part in (("cpu", (0, rows // 2)), ("gpu", (rows // 2, rows)))
    )
    parts[first], parts[second] = SegmentDesign(segment.name, segment.start, segment.end, bands, "rows"), stretched
    model = build(found, BranchDesign(found.graph.name, "test", tuple(parts)))
    refine_unlabelled(model, found, images(found), others(found), steps=4)
    upper, lower = (dict(model.branch(segment.name, name).named_parameters()) for name in ("cpu", "gpu"))
    assert upper.keys() & lower.keys()
    assert all(upper[name] is lower[name] for name in upper.keys() & lower.keys())


def test_minutes_are_kept(captured):
    found = captured("tiny_resnet")
    model = build(found, cpu_and("gpu", found.graph, "project"))
    told = refine_unlabelled(model, found, images(found), others(found), minutes=0.02)
    assert told.steps >= 1
    assert told.after <= told.before


@pytest.mark.parametrize(
    ("count", "asked", "why"), [(8, {"steps": 1}, "too few"), (40, {}, "minutes or steps"), (0, {"steps": 1}, "too few")]
)
def test_too_few_images_or_no_time_are_refused(captured, count, asked, why):
    found = captured("tiny_resnet")
    with pytest.raises(StretchError, match=why):
        refine_unlabelled(build(found, identity_design(found.graph)), found, images(found, count) if count else [], others(found), **asked)

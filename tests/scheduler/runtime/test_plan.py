import dataclasses

import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.placement.mapping import place_processors
from scheduler.runtime.plan import make_plan


@pytest.fixture
def manifest(bundle_dir):
    return load_bundle(bundle_dir).manifest


def test_plan_knows_order_readers_and_how_many_inputs_are_missing(manifest):
    plan = make_plan(manifest, place_processors(["cpu", "gpu"], cores=(0, 1)))
    assert plan.readers == {
        "x": ("stem",),
        "t0": ("s1.cpu", "s1.gpu"),
        "s1.cpu.y": ("s1.join",),
        "s1.gpu.y": ("s1.join",),
        "t1": ("s2.cpu", "s2.gpu"),
        "s2.cpu.y": ("s2.join",),
        "s2.gpu.y": ("s2.join",),
        "t2": ("head",),
    }
    assert plan.missing == {"stem": 1, "s1.cpu": 1, "s1.gpu": 1, "s1.join": 2, "s2.cpu": 1, "s2.gpu": 1, "s2.join": 2, "head": 1}
    assert sorted(plan.order, key=plan.order.get)[0] == "stem"
    assert plan.queues == {"cpu0": "inline", "cpu1": "blocking"}


def test_processor_without_a_placement_is_named(manifest):
    with pytest.raises(StretchError, match=r"`s1\.gpu` needs processor `gpu`"):
        make_plan(manifest, place_processors(["cpu"], cores=(0,)))


def test_queue_cannot_have_two_ways_of_dispatch(manifest):
    placed = place_processors(["cpu", "gpu"], cores=(0, 1))
    placed["gpu"] = dataclasses.replace(placed["gpu"], queue="cpu0")
    with pytest.raises(StretchError, match="both inline and blocking"):
        make_plan(manifest, placed)


def test_two_queues_cannot_both_run_on_the_calling_thread(manifest):
    placed = place_processors(["cpu", "gpu"], cores=(0, 1))
    placed["gpu"] = dataclasses.replace(placed["gpu"], dispatch="inline")
    with pytest.raises(StretchError, match="both run on the calling thread"):
        make_plan(manifest, placed)

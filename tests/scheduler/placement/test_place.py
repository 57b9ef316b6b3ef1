import dataclasses

import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.placement.mapping import place_processors
from scheduler.placement.place import interchangeable, own_cores, place_subgraphs, queues_of


@pytest.fixture
def entries(bundle_dir):
    return load_bundle(bundle_dir).manifest.subgraphs


def test_subgraph_runs_where_its_processor_is_placed(entries):
    placed = place_processors(["cpu", "gpu"], cores=(0, 1))
    found = place_subgraphs(entries, placed)
    assert {name: place.queue for name, place in found.items()} == {
        "stem": "cpu0",
        "s1.cpu": "cpu0",
        "s1.gpu": "cpu1",
        "s2.cpu": "cpu0",
        "s2.gpu": "cpu1",
        "head": "cpu0",
    }
    assert queues_of(found.values()) == {"cpu0": "inline", "cpu1": "blocking"}


def test_processor_without_a_placement_is_named(entries):
    with pytest.raises(StretchError, match=r"`s1\.gpu` needs processor `gpu`"):
        place_subgraphs(entries, place_processors(["cpu"], cores=(0,)))


def test_queue_cannot_have_two_ways_of_dispatch(entries):
    placed = place_processors(["cpu", "gpu"], cores=(0, 1))
    placed["gpu"] = dataclasses.replace(placed["gpu"], queue="cpu0")
    with pytest.raises(StretchError, match="both inline and blocking"):
        place_subgraphs(entries, placed)


def test_two_queues_cannot_both_run_on_the_calling_thread(entries):
    placed = place_processors(["cpu", "gpu"], cores=(0, 1))
    placed["gpu"] = dataclasses.replace(placed["gpu"], dispatch="inline")
    with pytest.raises(StretchError, match="both run on the calling thread"):
        place_subgraphs(entries, placed)


def kinds(mapping, movable):
    return interchangeable(place_processors(["cpu", "gpu", "dsp"], mapping, cores=(0, 1, 2)).values(), movable)


def test_only_equal_movable_delegates_on_as_many_cores_do_each_others_work():
    apart = {"cpu": "cpu0", "gpu": "cpu1", "dsp": "reference2"}
    assert kinds(apart, {"cpu"}) == {"cpu0": ("cpu1",), "cpu1": ("cpu0",)}
    assert kinds(apart, ()) == {}
    assert kinds({"cpu": "cpu0+2", "gpu": "cpu1", "dsp": "reference1"}, {"cpu"}) == {"cpu0+2": ()}


def test_queue_with_a_subgraph_that_must_stay_helps_nobody_and_is_not_helped():
    assert kinds({"cpu": "cpu0", "gpu": "cpu1", "dsp": "reference1"}, {"cpu"}) == {"cpu0": ()}


def test_queue_whose_cores_another_uses_has_none_of_its_own():
    apart = place_processors(["cpu", "gpu"], {"cpu": "cpu0", "gpu": "cpu1"}, cores=(0, 1))
    assert own_cores(apart.values()) == {"cpu0", "cpu1"}
    shared = place_processors(["cpu", "gpu", "dsp"], {"cpu": "cpu0+1", "gpu": "cpu1", "dsp": "cpu2"}, cores=(0, 1, 2))
    assert own_cores(shared.values()) == {"cpu2"}
    assert own_cores([dataclasses.replace(apart["gpu"], cores=())]) == set()

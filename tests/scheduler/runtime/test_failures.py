import pytest

from scheduler.bundle.load import load_bundle
from scheduler.placement.mapping import place_processors
from scheduler.runtime.failures import step_failure
from scheduler.runtime.plan import make_plan


@pytest.fixture
def plan(bundle_dir):
    return make_plan(load_bundle(bundle_dir).manifest, place_processors(["cpu", "gpu"]))


def test_failed_subgraph_is_named_with_its_processor_and_first_line(plan):
    error = step_failure(plan, "s1.gpu", RuntimeError("no memory\nat line 3"))
    assert error.message == "subgraph `s1.gpu` failed on processor `gpu` (delegate `cpu`): no memory"


def test_failed_join_is_named(plan):
    join = next(iter(plan.joins))
    assert step_failure(plan, join, ValueError("bad")).message == f"join `{join}` failed: bad"


def test_error_without_words_gives_its_type(plan):
    assert step_failure(plan, "head", KeyError()).message.endswith(": KeyError")


def test_known_text_serves_without_a_cause(plan):
    assert step_failure(plan, "head", None, "lost").message.endswith(": lost")

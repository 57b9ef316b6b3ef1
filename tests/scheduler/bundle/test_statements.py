import copy
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.bundle.load import read_bundle
from scheduler.bundle.manifest import Manifest
from scheduler.bundle.statements import statement_problems
from tests.scheduler.bundles import two_branches

PREDICTED = {"makespan_ms": 2.0, "best_single_ms": 3.0, "best_single_processor": "gpu", "best_single_precision": "fp16", "speedup": 1.5}
PREDICTED |= {"sequential_same_macs_ms": None, "optimal": True, "gap": 0.0, "source": "predicted"}
CHECKS = {"tolerance": 1e-4, "max_error": 2e-6, "errors": {"model": 2e-6, "s1.cpu": 0.0, "original": 1e-7}, "reference": "torch 2"}


@pytest.fixture(scope="module")
def stated(tmp_path_factory):
    """A manifest as plain data, with figures and checks."""
    data = msgspec.to_builtins(read_bundle(two_branches(tmp_path_factory.mktemp("stated") / "b")).manifest)
    return data | {"predicted": PREDICTED, "checks": CHECKS}


def problems(data):
    return list(statement_problems(msgspec.convert(data, Manifest)))


def test_rounding_that_would_excuse_any_difference_is_a_problem(stated):
    assert problems(stated | {"checks": CHECKS | {"rounding": {"y": 0.009}}}) == []
    assert problems(stated | {"checks": CHECKS | {"rounding": {"y": 0.2}}}) == ["`checks.rounding` states an error above 0.01"]


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("design",), {}, "`design` is not a design"),
        (("design",), {"garbage": 1}, "`design` is not a design"),
        (("design", "segments", 0, "branches"), [], "`design` is not a design"),
        (("design", "segments", 1, "branches", 0, "depth"), -1, "`design` is not a design"),
        (("design", "segments", 1, "branches", 0, "width"), "wide", "`design` is not a design"),
        (("design", "version"), 2, "`design` is not a design"),
        (("design", "segments"), [], "has the segments"),
        (("design", "segments", 1, "name"), "s9", "the subgraphs are of stem, s1, s2, head"),
        (("design", "segments", 1, "branches", 0, "processor"), "npu", "branches on npu, gpu in segment `s1`"),
        (("design", "segments", 1, "branches", 1, "processor"), "cpu", "branches on cpu, cpu in segment `s1`"),
        (("design", "segments", 2, "join"), "concat", "joins segment `s2` by concat, the bundle has sum there"),
        (("predicted",), {"garbage": 1}, "no `makespan_ms`"),
        (("predicted", "makespan_ms"), "soon", "`predicted.makespan_ms` is `soon`"),
        (("predicted", "makespan_ms"), -1, "`predicted.makespan_ms` is -1"),
        (("predicted", "communication_ms"), 10**400, "`predicted.communication_ms`"),
        (("predicted", "speedup"), 99.0, "`predicted.speedup` is 99.0"),
        (("predicted", "speedup"), None, "`predicted.speedup` is None"),
        (("predicted", "best_single_precision"), "fp128", "`predicted.best_single_precision` is `fp128`"),
        (("predicted", "source"), "measured", "`predicted.source` is `measured`"),
        (("predicted", "note"), "garbage", "`predicted.note` is `garbage`"),
        (("checks",), {"garbage": 1}, "`checks.garbage` is no table"),
        (("checks",), {"max_error": 0}, "no `tolerance`"),
        (("checks", "tolerance"), 0, "no `tolerance`"),
        (("checks", "reference"), 3, "`reference`"),
        (("checks", "errors"), {}, "`checks.errors` is not"),
        (("checks", "errors"), "none", "`checks.errors` is not"),
        (("checks", "errors", "model"), -1, "`checks.errors.model` is -1|`checks.errors` is not"),
        (("checks", "errors", "model"), True, "`checks.errors` is not"),
        (("checks", "errors", "s7.cpu"), 0.0, "`checks.errors` has `s7.cpu`"),
        (("checks", "max_error"), 0.0, "`checks.max_error` is 0.0, and not the largest"),
        (("checks", "tolerance"), 1e-9, "`checks.tolerance` allows 1e-09"),
        (("checks", "precision"), "fine", "`checks.precision` is no table"),
    ],
)
def test_what_cannot_be_is_one_sentence(stated, path, value, problem):
    data = copy.deepcopy(stated)
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    assert any(any(part in found for part in problem.split("|")) for found in problems(data)), problems(data)


def test_branch_that_was_moved_to_another_processor_is_still_the_designs(stated):
    data = copy.deepcopy(stated)
    data["subgraphs"][2]["processor"] = "cpu"
    assert problems(data) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*PREDICTED, *CHECKS, "segments", "x"]), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from([*PREDICTED, "x"]), JSON, max_size=5),
    st.dictionaries(st.sampled_from([*CHECKS, "aot"]), JSON, max_size=5),
)
def test_any_statement_is_judged_in_sentences_and_numbers_that_pass_are_finite(stated, predicted, checks):
    found = problems(stated | {"predicted": predicted, "checks": checks})
    assert all(isinstance(problem, str) and problem for problem in found)
    if not found and predicted:
        assert math.isfinite(predicted["makespan_ms"])
        assert predicted["makespan_ms"] > 0

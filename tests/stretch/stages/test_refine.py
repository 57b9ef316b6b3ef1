"""A refined network is no worse than it was, in the errors of its outputs and in how often it agrees."""

import pytest

torch = pytest.importorskip("torch")

from msgspec.structs import replace  # noqa: E402 - torch may be missing

from scheduler.bundle.agreement import Agreement  # noqa: E402
from stretch.stages import refine as module  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ((0.5, 0.2), (0.4, 0.1), True),
        ((0.5, 0.1), (0.5, 0.2), True),
        ((0.5, 0.2), (0.5, 0.1), False),
        ((0.5, 0.1), (0.6, 0.2), False),
        ((None, 0.1), (None, 0.2), True),
        ((None, 0.2), (None, 0.1), False),
    ],
)
def test_classes_decide_and_errors_where_they_are_as_many_or_none(before, after, worse):
    plain = Agreement(value=None, low=None, high=None, top5_overlap=None, error=0.0, images=8)
    one, other = (replace(plain, value=value, error=error) for value, error in (before, after))
    assert module._worse(other, one) == worse

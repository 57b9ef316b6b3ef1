import pytest

from predictors.devices import load_device
from stretch.planning.config import PlanConfig
from stretch.planning.plan import attempts, stage_attempts

DEVICE = load_device("mi9")
DEFAULT = PlanConfig().resolve(DEVICE)


@pytest.mark.parametrize(
    ("request_options", "attempted"),
    [
        ({}, [set(), {"alpha", "merge"}, {"lossless", "min_agreement"}, {"lossless", "min_agreement", "n_meet"}]),
        ({"n_meet": 2}, [set(), {"alpha", "merge"}, {"lossless", "min_agreement"}]),
        ({"kinds": ("rows",)}, [set()]),
        ({"lossless": True}, [set()]),
        ({"join": "concat"}, [set()]),
        ({"strategy": "grid"}, [set()]),
    ],
)
def test_requests_without_a_design_are_retried_with_looser_options_unless_these_are_stated(request_options, attempted):
    assert [set(attempt.options) for attempt in attempts(PlanConfig(**request_options).resolve(DEVICE), DEFAULT)] == attempted


@pytest.mark.parametrize(
    ("request_options", "loss_known", "merged"),
    [
        ({}, False, [(False, False), (True, True)]),
        ({}, True, [(True, False)]),
        ({"merge": "never"}, True, [(False, False)]),
        ({"merge": "always"}, False, [(True, False)]),
        ({"meet": ("a",)}, False, [(False, False)]),
        ({"lossless": True}, False, [(False, False)]),
    ],
)
def test_stages_merge_last_unless_the_loss_is_known(request_options, loss_known, merged):
    assert list(stage_attempts(PlanConfig(**request_options), loss_known=loss_known)) == merged

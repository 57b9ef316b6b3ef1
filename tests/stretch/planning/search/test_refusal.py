"""A refusal is data, and a sentence for whoever asked."""

import pytest

from predictors.errors import TightRule
from stretch.planning.search.refusal import tightest
from stretch.planning.sentences import as_flag, as_key, error_spelled

ALPHA, MACS = TightRule("alpha", 0.2, 0.676), TightRule("macs", (3.0, 4.0), (1.503, 4.0))


@pytest.mark.parametrize(
    ("spelling", "message", "hint"),
    [
        (as_flag, "the tightest is --macs 3:4", "the nearest value with a design is --macs 1.503:4"),
        (as_key, "the tightest is `plan.macs = [3, 4]`", "the nearest value with a design is `plan.macs = [1.503, 4]`"),
    ],
)
def test_one_rule_is_named_as_each_edge_writes_it(spelling, message, hint):
    error = tightest("net", [MACS])
    found = error_spelled(error, spelling)
    assert found.message == f"no design of `net` meets the constraints; {message}"
    assert found.hint == hint
    assert (found.rules, found.exit_code) == ((MACS,), 4)
    assert error.message.endswith("the tightest is `macs=(3, 4)`")

"""How much the tests draw: few examples, the same every time, in `make test`; many and random ones in `make explore`."""

import os

from hypothesis import HealthCheck, settings

#: Examples of a test that states none, and the share of those stated that is drawn, by profile.
PROFILES = {"ci": (5, 0.2), "explore": (25, 1.0), "thorough": (1000, 40.0)}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")


def examples(count: int) -> int:
    """How many examples a test draws that asks for `count` when tests explore; at least three."""
    return max(3, round(count * PROFILES[PROFILE][1]))


def load_profile() -> None:
    """Set up hypothesis. No deadline: machines are shared, and no test asserts a time."""
    slow = [HealthCheck.too_slow]
    settings.register_profile("nn-stretch", max_examples=PROFILES[PROFILE][0], deadline=None, suppress_health_check=slow, derandomize=PROFILE == "ci", print_blob=True)  # fmt: skip
    settings.load_profile("nn-stretch")

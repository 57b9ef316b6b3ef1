"""Numbers of hypothesis examples: few and reproducible in `make test`, many and random in `make explore`."""

import os

from hypothesis import HealthCheck, settings

#: By profile, the default number of examples, and the share of a stated number that is drawn.
PROFILES = {"ci": (5, 0.2), "explore": (25, 1.0), "thorough": (1000, 40.0)}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")


def examples(count: int) -> int:
    """Number of examples for a test that draws `count` in `make explore`; at least three."""
    return max(3, round(count * PROFILES[PROFILE][1]))


def load_profile() -> None:
    """Set up hypothesis, without a deadline: machines are shared, and no test asserts a time."""
    slow = [HealthCheck.too_slow]
    settings.register_profile("nn-stretch", max_examples=PROFILES[PROFILE][0], deadline=None, suppress_health_check=slow, derandomize=PROFILE == "ci", print_blob=True)  # fmt: skip
    settings.load_profile("nn-stretch")

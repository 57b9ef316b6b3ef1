"""Format option values, probabilities and command lines for messages."""

import shlex
from typing import Any


def format_probability(probability: float) -> str:
    """Return a probability in words, never rounded to certainty: ``over 99 %``, ``64 %``, ``under 1 %``."""
    if probability > 0.99 or probability < 0.01:
        return "over 99 %" if probability > 0.5 else "under 1 %"
    return f"{100 * probability:.0f} %"


def command_line(*words: object) -> str:
    """Return a shell command line of `stretch` and some words, quoted."""
    return shlex.join(["stretch", *map(str, words)])


def format_value(value: Any) -> str:
    """Return a value in the syntax of ``--set``: ``0.2``, ``0.97:1.03``, ``cpu,gpu``, ``cpu=int8,gpu=fp16``."""
    if isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, tuple):
        return (":" if any(isinstance(item, float) for item in value) else ",").join(map(format_value, value))
    if isinstance(value, int | float):
        # at most six digits, except for large integers
        return f"{value:.6g}" if abs(value) < 1e6 else str(round(value))
    return str(value)

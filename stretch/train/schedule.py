"""The learning rate over a run."""

import math


def learning_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Linear rise over `warmup` steps, then a half-cosine down to zero.

    Args:
        step: From 0.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * done))

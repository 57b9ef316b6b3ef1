"""What times come to, against numpy, and who is called fastest."""

import numpy as np
import pytest

from scheduler.tools.bench.compare import BenchContender, summarise, verdict


def contender(name, ns, first=None):
    """A contender with these times."""
    return BenchContender(
        name=name,
        file=name,
        runtime="onnxruntime",
        runtime_version="1",
        threads=1,
        steady=True,
        summary=summarise(ns, first or ns),
        macs_ratio=None,
        max_error=None,
        compared_with=None,
        ns=ns,
    )


def drawn(middle, seed):
    rng = np.random.default_rng(seed)
    return [[int(n) for n in middle * rng.lognormal(0, 0.01, 30)] for _ in range(5)]


def test_summary_is_of_all_rounds_in_milliseconds():
    ns, first = drawn(3e6, 1), drawn(2e6, 2)
    result = summarise(ns, first)
    every = np.concatenate(ns)
    assert result.median_ms == pytest.approx(np.median(every) / 1e6)
    assert result.p90_ms == pytest.approx(np.percentile(every, 90) / 1e6)
    assert result.ratio == pytest.approx(np.median(every / np.concatenate(first)))
    assert result.repeat_low_ms < result.low_ms < result.median_ms < result.high_ms < result.repeat_high_ms


def test_fastest_is_named_only_if_rounds_tell_it_from_all_others():
    slow, fast = contender("slow", drawn(4e6, 1)), contender("fast", drawn(2e6, 2))
    assert verdict([slow, fast]).startswith("fast takes 2 ms, the least: slow, the next, takes 2.0")
    even = contender("even", drawn(2e6, 3))
    assert verdict([slow, fast, even]).startswith("no clear winner: ")
    assert "slow" not in verdict([slow, fast, even])
    assert verdict([slow]) == "slow takes 4 ms; nothing was compared with it" or "nothing was compared" in verdict([slow])


def test_single_rounds_make_no_winner():
    assert "no clear winner" in verdict([contender("a", [[1000]]), contender("b", [[9000]])])

import itertools

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402 - torch may be missing
from hypothesis import strategies as st  # noqa: E402

from stretch.transform.calibrate.split import divide  # noqa: E402

pytestmark = pytest.mark.torch


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=9), largest=st.sampled_from((1, 2**22, 2**30)))
def test_every_image_is_fitted_to_or_held_back_whatever_the_batches(sizes, largest):
    count = sum(sizes)
    images = torch.arange(count).float().reshape(-1, 1, 1, 1)
    batches, split = divide(images.split(sizes), largest)
    numbers = [int(x) for batch in batches for x in batch.flatten()]
    assert sorted(numbers) == list(range(count))
    assert split.images == sum(len(batch) for batch in batches[: split.fitted])
    held = sum(len(batch) for batch in batches[split.held :])
    if count < 64:
        assert split.images == held == count
    else:
        assert held == max(16, count // 5) == count - split.images
        back = sorted(int(x) for batch in batches[split.held :] for x in batch.flatten())
        # Spread over all: no stretch of a sorted folder is missing from the choice or from the fits.
        assert all(2 <= b - a <= 6 for a, b in itertools.pairwise(back))
    together, again = divide([images], largest)
    assert again == split
    assert all(torch.equal(a, b) for a, b in zip(batches, together, strict=True))
    assert all(len(batch) <= max(1, 2**25 // largest) for batch in batches)

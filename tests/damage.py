"""Files with changed bytes, and a check that reading such a file ends with at most one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

from predictors.errors import StretchError


def damaged(draw, content: bytes, places: st.SearchStrategy | None = None) -> bytearray:
    """The content with one to four changed bytes."""
    result = bytearray(content)
    places = st.integers(0, len(result) - 1) if places is None else places
    for _ in range(draw(st.integers(1, 4))):
        result[draw(places)] = draw(st.integers(0, 255))
    return result


@contextmanager
def one_sentence() -> Iterator[None]:
    """Assert that the block ends without an error or with an error of one sentence."""
    message = "none"
    try:
        yield
    except StretchError as error:
        message = error.message
    assert len(message.splitlines()) == 1

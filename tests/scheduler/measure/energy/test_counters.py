"""A number that cannot be used is refused with its file and the reason."""

import pytest

from scheduler.measure.energy.counters import CounterError, read_number


@pytest.mark.parametrize("text", ["", "NaN", "1.5", "N/A", "0x10"])
def test_what_is_no_whole_number_is_refused(tmp_path, text):
    (tmp_path / "it").write_text(text)
    with pytest.raises(CounterError, match="which is no whole number"):
        read_number(tmp_path / "it")


def test_file_that_vanished_or_is_none_is_refused(tmp_path):
    with pytest.raises(CounterError, match="gone cannot be read"):
        read_number(tmp_path / "gone")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(CounterError, match="holds no number"):
        read_number(tmp_path / "bytes")
    with pytest.raises(CounterError, match="cannot be read"):
        read_number(tmp_path)

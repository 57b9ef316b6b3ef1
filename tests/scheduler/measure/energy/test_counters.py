"""A number that cannot be used is refused with its file and the reason."""

import pytest

from scheduler.measure.energy.counters import CounterError, folders, read_number, read_word


@pytest.mark.parametrize(("text", "number"), [("12\n", 12), ("-3", -3), (" 7 ", 7)])
def test_number_is_read(tmp_path, text, number):
    (tmp_path / "it").write_text(text)
    assert read_number(tmp_path / "it") == number


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


def test_word_that_is_not_there_is_empty(tmp_path):
    (tmp_path / "status").write_text("Full\n")
    assert read_word(tmp_path / "status") == "Full"
    assert read_word(tmp_path / "name") == ""


def test_folders_are_those_of_the_pattern_in_order(tmp_path):
    for name in ("b1", "b0", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "b2").write_text("a file")
    assert [path.name for path in folders(tmp_path, "b*")] == ["b0", "b1"]
    assert folders(tmp_path / "nowhere", "*") == []

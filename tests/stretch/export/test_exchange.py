import pytest

from stretch.export.staging import exchange, place


def folder(path):
    path.mkdir()
    (path / path.name).touch()
    return path


def test_two_folders_trade_names(tmp_path):
    a, b = folder(tmp_path / "a"), folder(tmp_path / "b")
    assert exchange(a, b)
    assert (a / "b").exists()
    assert (b / "a").exists()


def test_exchange_with_a_name_that_nobody_has_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        exchange(folder(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a" / "a").exists()


def test_folder_gets_a_free_name(tmp_path):
    assert place(folder(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "b" / "a").exists()


@pytest.mark.parametrize("taken", ["folder", "empty", "file"])
def test_name_that_is_taken_stays_with_who_has_it(tmp_path, taken):
    b = tmp_path / "b"
    if taken == "folder":
        folder(b)
    elif taken == "empty":
        b.mkdir()
    else:
        b.write_text("")
    assert not place(folder(tmp_path / "a"), b)
    assert (tmp_path / "a" / "a").exists()
    assert not (b / "a").exists()

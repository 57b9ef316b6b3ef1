import pytest

from predictors.errors import MissingBackendError, StretchError, UsageError
from stretch.tools.phone.measure import Phone, find_phone, workspace
from tests.stretch.tools.phone.adb import Player, shell


@pytest.fixture
def adb(monkeypatch, tmp_path):
    return Player(monkeypatch, tmp_path / "adb")


@pytest.fixture
def phone(adb):
    return Phone(str(adb.folder / "adb"), "R5CT", 60.0)


@pytest.mark.parametrize(
    ("transcript", "error", "sentence"),
    [
        ("none.json", StretchError, "adb sees no device"),
        ("several.json", UsageError, "adb sees 2 devices: R5CT, emulator-5554"),
        ("unauthorized.json", StretchError, "`R5CT` does not trust this computer yet"),
        ("offline.json", StretchError, "`R5CT` is offline"),
        ("no_permissions.json", StretchError, "may not be opened by this user"),
        ("no_server.json", StretchError, "cannot list devices: failed to check server version: cannot connect to daemon"),
    ],
)
def test_why_no_phone_is_ready_is_told_in_one_sentence(adb, transcript, error, sentence):
    adb.plays(transcript)
    with pytest.raises(error, match=sentence.replace("`", "`")) as caught:
        find_phone(None, 60)
    assert "\n" not in caught.value.message
    adb.ended()


def test_the_only_device_or_the_one_that_was_named_is_taken(adb):
    adb.plays([{"call": ["devices"], "out": "List of devices attached\nR5CT\tdevice\nemulator-5554\toffline\n\n", "often": True}])
    assert find_phone("R5CT", 60).serial == "R5CT"
    with pytest.raises(StretchError, match="`emulator-5554` is offline"):
        find_phone("emulator-5554", 60)
    with pytest.raises(StretchError, match="sees no device `other`"):
        find_phone("other", 60)


@pytest.mark.parametrize("serial", ["-d", "a;reboot", "a\nb"])
def test_a_serial_that_cannot_be_one_never_reaches_adb(adb, serial):
    adb.plays([])
    with pytest.raises(UsageError, match="is no serial of a device"):
        find_phone(serial, 60)
    assert adb.log == []


def test_without_adb_the_package_to_install_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBackendError, match="no program `adb`") as caught:
        find_phone(None, 60)
    assert caught.value.exit_code == 5
    assert "platform tools" in caught.value.hint


def test_words_of_a_command_stay_words_on_the_phone(adb, phone):
    adb.plays([{"call": ["-s", "R5CT", "shell", "echo 'a b' ';rm -rf x' '$HOME'"], "out": "said\n"}])
    assert phone.shell(["echo", "a b", ";rm -rf x", "$HOME"]) == "said\n"
    adb.ended()


def test_folder_on_the_phone_is_removed_after_an_error_or_is_named(adb, phone):
    for error in (StretchError("broken"), KeyboardInterrupt()):
        adb.plays([{"call": shell(["mkdir", "{folder}"])}, {"call": shell(["rm", "-rf", "{folder}"])}])
        with pytest.raises(type(error)), workspace(phone):
            raise error
        adb.ended()
    gone = {"err": "adb: error: device 'R5CT' not found\n", "code": 1}
    adb.plays([{"call": shell(["mkdir", "{folder}"])}, {"call": shell(["ls"]), **gone}, {"call": shell(["rm", "-rf", "{folder}"]), **gone}])
    with pytest.raises(StretchError, match="the device is gone") as caught, workspace(phone):
        phone.shell(["ls"])
    assert phone.folder in caught.value.hint
    adb.ended()


def test_a_file_that_was_pulled_is_whole_or_not_there(adb, phone, tmp_path):
    pull = ["-s", "R5CT", "pull", f"{phone.folder}/times.csv", "{here}"]
    gone = {"call": pull, "gives": "half", "err": "adb: error: device offline\n", "code": 1}
    adb.plays([gone, {"call": pull, "gives": "whole"}, {"call": pull}])
    with pytest.raises(StretchError, match="the device is gone"):
        phone.pull("times.csv", tmp_path / "times.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["adb"]
    phone.pull("times.csv", tmp_path / "times.csv")
    assert (tmp_path / "times.csv").read_text() == "whole"
    with pytest.raises(StretchError, match="it is not here"):
        phone.pull("times.csv", tmp_path / "other.csv")
    adb.ended()


def test_a_call_that_does_not_end_is_ended(adb, phone):
    adb.plays([{"call": shell(["ls"]), "hangs": True}])
    with pytest.raises(StretchError, match="did not end within 2 s"):
        phone.shell(["ls"], limit=2.0)

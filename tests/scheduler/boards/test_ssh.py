"""A real ssh and a real sshd on the loopback interface: what is connected, and what is said where it is not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from predictors.errors import MissingBackendError, StretchError
from scheduler.boards.facts import SERIES, check_facts, read_facts
from scheduler.boards.line import LostError
from scheduler.boards.board import connect, explain_loss, explain_start, ssh_words
from tests.scheduler.boards.servers import free_port, script

#: Pythons of other series, of which one may be here.
OTHERS = [f"python3.{minor}" for minor in range(7, 15) if f"3.{minor}" != SERIES]


def runnable(name):
    """The path of a program that runs, also of one that pyenv keeps."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}.*/bin/{name}"))
    for found in [shutil.which(name), *map(str, kept)]:
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return None


def failure(server, host, kind=StretchError):
    with pytest.raises(kind) as failed:
        connect(host, server.config)
    assert type(failed.value) is kind
    assert failed.value.hint
    return failed.value


def test_board_answers_with_what_it_is(server, loopback):
    with connect(loopback, server.config) as line:
        assert line.facts["python"].startswith(SERIES)
        assert line.facts["system"] == "Linux"


def test_options_never_come_from_the_host(server, loopback):
    words = ssh_words(loopback, server.config)
    assert words[-2:] == ["--", loopback]
    assert words[:3] == ["ssh", "-F", str(server.config)]


def test_what_the_users_configuration_says_of_waiting_is_kept(server):
    host = server.host("patient", "ConnectTimeout 77", "ServerAliveInterval 99")
    assert not [word for word in ssh_words(host, server.config) if word.startswith(("ConnectTimeout", "ServerAlive"))]
    other = server.host("usual")
    assert "ConnectTimeout=20" in ssh_words(other, server.config)
    assert "ServerAliveInterval=15" in ssh_words(other, server.config)


def test_command_and_forwardings_of_the_configuration_are_left_out(server, loopback):
    key = server.folder / f"{loopback}.key"
    server.host(
        "busy",
        f"IdentityFile {key}",
        "RemoteCommand echo other",
        f"LocalForward {free_port()} 127.0.0.1:{free_port()}",
        "LogLevel QUIET",
        "RequestTTY force",
    )
    with connect("busy", server.config) as line:
        assert line.facts["system"] == "Linux"


def test_connection_that_is_shared_is_used_and_does_not_hold_us_up(server, loopback):
    key = server.folder / f"{loopback}.key"
    control = ("ControlMaster auto", f"ControlPath {server.folder}/%C", "ControlPersist 5")
    server.host("shared", f"IdentityFile {key}", *control)
    for _ in range(2):
        with connect("shared", server.config) as line:
            assert line.facts["system"] == "Linux"


def test_name_that_is_not_known_is_told_of(server):
    # too long for a name, so that nobody is asked for it
    with (server.config).open("a") as stream:
        stream.write(f"Host nowhere\n  HostName {'x' * 70}\n")
    assert "there is no host nowhere" in failure(server, "nowhere").message


def test_host_that_is_not_there_is_told_of(server):
    with (server.config).open("a") as stream:
        stream.write(f"Host dead\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    assert failure(server, "dead").message == "dead refuses connections"


def test_key_that_is_not_accepted_is_told_of(server):
    host = server.host("stranger", f"IdentityFile {server.key('stranger')}")
    refused = failure(server, host)
    assert refused.message == "stranger does not accept our key"
    assert "ssh-copy-id stranger" in refused.hint


def test_host_whose_key_is_not_known_is_told_of_and_not_trusted(server, loopback):
    known = server.folder / "known-of-nobody"
    host = server.host(
        "unknown", f"IdentityFile {server.folder / loopback}.key", f"UserKnownHostsFile {known}", "GlobalKnownHostsFile none"
    )
    assert failure(server, host).message == "the key of unknown is not known here"
    assert not known.exists() or not known.read_text()


def test_host_whose_key_has_changed_is_told_of(server, loopback):
    known = server.folder / "known-of-another"
    kind, key = (server.folder / "stray.key.pub").read_text().split()[:2] if server.key("stray") else ("", "")
    known.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
    host = server.host(
        "changed", f"IdentityFile {server.folder / loopback}.key", f"UserKnownHostsFile {known}", "GlobalKnownHostsFile none"
    )
    assert failure(server, host).message == "the key of changed is not the one that is known"


def test_board_without_python_is_told_of(server):
    host = server.board("bare", None)
    assert failure(server, host, MissingBackendError).message == "there is no Python on bare"


def test_board_without_a_shell_command_is_told_of(server):
    host = server.board("empty", None, tools=())
    assert "empty does not start Python" in failure(server, host).message


def test_python_of_another_series_is_told_of(server):
    other = next((found for name in OTHERS if (found := runnable(name))), None)
    if other is None:
        pytest.skip("there is no other Python")
    host = server.board("series", None)
    (server.folder / "series/bin/python3").symlink_to(script(server.folder / "series-python", f'exec "{other}" "$@"'))
    with connect(host, server.config) as line, pytest.raises(MissingBackendError, match=f"and here is {SERIES}: packages have to be"):
        check_facts(host, read_facts(host, line.facts))


def test_python_that_is_too_old_to_tell_is_told_of(server):
    old = runnable("python3.6")
    if old is None:
        pytest.skip("there is no Python 3.6")
    host = server.board("old", None)
    (server.folder / "old/bin/python3").symlink_to(script(server.folder / "old-python", f'exec "{old}" "$@"'))
    assert failure(server, host, MissingBackendError).message.startswith("Python on old is older than 3.7, and here is")


def test_python_that_does_not_start_is_told_of(server):
    host = server.board("broken", script(server.folder / "broken-python", "echo cannot start >&2", "exit 5"))
    assert failure(server, host).message == "broken does not start Python: cannot start"


def test_configuration_that_is_missing_or_wrong_is_told_of(server, tmp_path):
    with pytest.raises(StretchError, match="there is no ssh configuration"):
        connect("board", tmp_path / "missing")
    (tmp_path / "wrong").write_text("NoSuchThing yes\n")
    with pytest.raises(StretchError, match="ssh does not take its configuration"):
        connect("board", tmp_path / "wrong")


def test_machine_without_ssh_is_told_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBackendError, match="there is no `ssh` here"):
        connect("board")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ssh: connect to host b port 22: No route to host", "b does not answer"),
        ("ssh: connect to host b port 22: Connection timed out", "b does not answer"),
        ("Received disconnect from 1.2.3.4: Too many authentication failures", "b does not accept our key"),
        ("No ED25519 host key is known for b and you have requested strict checking.", "the key of b is not known here"),
        ("something else", "ssh does not connect to b: something else"),
        ("", "ssh does not connect to b: it said nothing"),
    ],
)
def test_what_ssh_says_becomes_a_sentence(said, told):
    assert explain_start("b", LostError(255, said, "")).message == told


def test_lost_line_names_what_was_going_on():
    lost = explain_loss("b", "the bundle was copied", LostError(255, "client_loop: send disconnect: Broken pipe\n", None))
    assert lost.message == "the connection to b was lost while the bundle was copied: client_loop: send disconnect: Broken pipe"
    assert explain_loss("b", "x", LostError(-9, "", None)).message == "the connection to b was lost while x"


def test_other_python_is_found_where_ours_is_missing(server):
    home = server.folder / "other"
    host = server.board("other", None)
    (home / "bin" / "python3").symlink_to(script(server.folder / "other-python", f'exec "{sys.executable}" "$@"'))
    with connect(host, server.config) as line:
        assert line.facts["implementation"] == "cpython"

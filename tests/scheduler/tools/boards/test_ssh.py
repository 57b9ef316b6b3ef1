"""A real ssh and a real sshd on the loopback interface: what is connected, and what is said where it is not."""

import pytest

from predictors.errors import StretchError
from scheduler.tools.boards.board import connect, ssh_words
from scheduler.tools.boards.facts import SERIES
from tests.scheduler.tools.boards.servers import free_port


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


def test_host_that_is_not_there_is_told_of(server):
    with (server.config).open("a") as stream:
        stream.write(f"Host dead\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    assert failure(server, "dead").message == "dead refuses connections"


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

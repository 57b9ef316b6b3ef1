"""Real boards for tests: an sshd on the loopback interface, with keys, folders and Pythons of the tests."""

import os
import platform
import select
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scheduler.tools.boards.facts import SERIES

#: Environment variable with the name of a process's board, by which tests find its processes.
BOARD = "NN_STRETCH_TEST_BOARD"


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


@dataclass
class Server:
    """An sshd with one key for each board that it represents."""

    folder: Path
    port: int
    boards: dict[str, Path] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        """The ssh configuration in which boards are hosts."""
        return self.folder / "config"

    def key(self, name: str) -> Path:
        path = self.folder / f"{name}.key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        return path

    def board(self, name: str, python: Path | None, *, tools: tuple[str, ...] = ("sh",)) -> str:
        """Add a host whose PATH has only `tools` and `python`, the latter under the name of this environment's Python version."""
        home = self.folder / name
        (home / "bin").mkdir(parents=True)
        for tool in tools:
            (home / "bin" / tool).symlink_to(shutil.which(tool))
        if python is not None:
            (home / "bin" / f"python{SERIES}").symlink_to(python)
        key = self.key(name)
        environment = {"PATH": home / "bin", "HOME": home, "XDG_CACHE_HOME": home / "cache", BOARD: name}
        options = ",".join(f'environment="{variable}={value}"' for variable, value in environment.items())
        with (self.folder / "authorized").open("a") as stream:
            stream.write(f"{options} {key.with_name(key.name + '.pub').read_text()}")
        self.host(name, f"IdentityFile {key}")
        self.boards[name] = home
        return name

    def host(self, name: str, *lines: str) -> str:
        """Add a host to the ssh configuration, with the boards' settings unless `lines` state others."""
        defaults = [f"Port {self.port}", "HostName 127.0.0.1", f"UserKnownHostsFile {self.folder / 'known'}"]
        defaults += ["IdentitiesOnly yes", "StrictHostKeyChecking yes"]
        with self.config.open("a") as stream:
            stream.write("\n  ".join([f"Host {name}", *lines, *defaults]) + "\n")
        return name

    def kept(self, name: str) -> list[str]:
        """Files and folders in the folder of a board, two levels deep."""
        root = self.boards[name] / "cache" / "nn-stretch" / "board"
        return sorted(str(path.relative_to(root)) for pattern in ("*", "*/*") for path in root.glob(pattern))

    def processes(self, name: str, text: bytes) -> list[int]:
        """Ids of a board's processes with `text` in their command line."""
        result = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{BOARD}={name}\0".encode() in (folder / "environ").read_bytes() and text in (folder / "cmdline").read_bytes():
                    result.append(int(folder.name))
            except OSError:
                continue
        return result


def ended(process: int, seconds: float = 60.0) -> bool:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def sshd_program() -> str:
    """Path of sshd; skips the test if it is missing."""
    path = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if path is None or shutil.which("ssh") is None:
        pytest.skip("needs an ssh client and server: Debian's openssh-client and openssh-server")
    return path


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    program = sshd_program()
    built = Server(tmp_path_factory.mktemp("sshd"), free_port())
    host = built.key("host")
    kind, key = host.with_name("host.key.pub").read_text().split()[:2]
    (built.folder / "known").write_text(f"[127.0.0.1]:{built.port} {kind} {key}\n")
    (built.folder / "authorized").touch()
    settings = {"ListenAddress": "127.0.0.1", "Port": built.port, "HostKey": host, "AuthorizedKeysFile": built.folder / "authorized"}
    settings |= {"PidFile": "none", "PermitRootLogin": "yes", "PermitUserEnvironment": "yes"}
    settings |= dict.fromkeys(("UsePAM", "StrictModes", "PasswordAuthentication", "KbdInteractiveAuthentication", "PrintMotd"), "no")
    (built.folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    if os.geteuid() == 0:
        # sshd needs this folder for its unprivileged process
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    running = subprocess.Popen([program, "-D", "-e", "-f", built.folder / "sshd_config"], stderr=subprocess.PIPE, text=True)
    try:
        message = running.stderr.readline()
        if "listening" not in message:
            pytest.skip(f"sshd does not start here: {message.strip()}")
        yield built
    finally:
        running.terminate()
        running.communicate()


@pytest.fixture(scope="session")
def loopback(server):
    """This machine as a board, with the base Python of this environment but without its packages."""
    base = Path(sys.base_prefix) / "bin" / f"python{SERIES}"
    return server.board("loopback", script(server.folder / "plain-python", f'exec "{base}" "$@"'))


#: Content of /proc/cpuinfo, which the emulation lacks.
CPUINFO = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""


def emulated(root: Path, path: Path) -> Path:
    """Script that runs the Python of an aarch64 system's folder under emulation."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc" / "cpuinfo").write_text(CPUINFO)
    program = f"{root}/usr/bin/python{SERIES}"
    return script(path, f'exec "{shutil.which("qemu-aarch64-static")}" -cpu neoverse-n1 -L "{root}" "{program}" "$@"')


@pytest.fixture(scope="session")
def aarch64_root(tmp_path_factory):
    """A folder with an aarch64 Debian that has Python, extracted without running its programs."""
    missing = [name for name in ("qemu-aarch64-static", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: Debian's qemu-user-static and mmdebstrap")
    system = platform.freedesktop_os_release()
    lists = [path for path in map(Path, ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")) if path.is_file()]
    if system.get("ID") != "debian" or not lists:
        pytest.skip("the packages of an aarch64 Debian are fetched by the lists of a Debian")
    root = tmp_path_factory.mktemp("aarch64") / "root"
    packages = "python3,libstdc++6,libgomp1"
    arguments = ["--variant=extract", "--arch=arm64", f"--include={packages}", system["VERSION_CODENAME"], root, lists[0]]
    run_result = subprocess.run(["mmdebstrap", "--quiet", *arguments], capture_output=True, text=True, check=False)
    if run_result.returncode:
        pytest.skip(f"mmdebstrap does not make an aarch64 Debian here: {run_result.stderr.strip()[-300:]}")
    if not (root / "usr" / "bin" / f"python{SERIES}").exists():
        pytest.skip(f"Debian {system['VERSION_CODENAME']} has another Python than {SERIES}")
    return root


@pytest.fixture(scope="session")
def aarch64(server, aarch64_root):
    """A board with the Python of an aarch64 Debian under emulation: real results, but meaningless times."""
    return server.board("aarch64", emulated(aarch64_root, server.folder / "emulated-python"))

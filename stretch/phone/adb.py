"""The user's `adb` program: one device, file transfer, and commands in a temporary folder."""

import contextlib
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from predictors.errors import MissingBackendError, StretchError, UsageError

#: Folder in which Android lets the shell's user run programs.
ROOT = "/data/local/tmp"

#: Seconds for what only asks; pushing a file and running a program may take as long as the caller allows.
ASKING_S = 30.0

_SERIAL = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.:-]*")

#: What `adb` itself says, before its exit code, of a device that is not there any more.
_GONE = re.compile(r"^(?:adb: )?error: (?:device '.*' not found|no devices/emulators found|device offline|closed|protocol fault.*)", re.M)

_STATES = {
    "unauthorized": ("does not trust this computer yet", "unlock it and accept the question about USB debugging"),
    "offline": ("is offline", "plug it in anew, then look at `adb devices`"),
    "no permissions": ("may not be opened by this user", "see the udev rules that Android's developer pages describe"),
    "recovery": ("is in recovery mode", "start it as usual"),
    "bootloader": ("is in its bootloader", "start it as usual"),
}


@dataclass(frozen=True)
class Ended:
    """How a call of `adb` ended: its exit code, or that of the command on the device, and what was printed."""

    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """The last line that says something, without `adb`'s name before it."""
        for text in (self.err, self.out):
            if lines := [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("*")]:
                return re.sub(r"^(adb: )?(error: )?", "", lines[-1])
        return f"exit code {self.code}"


@dataclass
class Phone:
    """A device that commands can be sent to."""

    program: str  # Path of `adb`.
    serial: str  # Of the device.
    limit: float  # Seconds that a command may take.
    #: On the device, made and removed by `workspace`.
    folder: str = field(default_factory=lambda: f"{ROOT}/nn-stretch-{secrets.token_hex(6)}")

    def property(self, name: str) -> str:
        """A property of the device, such as ``ro.product.model``; empty if it has none."""
        return self.shell(["getprop", name], limit=ASKING_S).strip()

    def push(self, path: Path, name: str, *, program: bool = False) -> str:
        """Copy a file into the folder; returns where it is there."""
        if not path.is_file():
            raise StretchError(f"there is no file {path} to copy to the phone")
        target = f"{self.folder}/{name}"
        self._adb(["push", str(path.resolve()), target], f"copy {path} to the phone")
        if program:
            self.shell(["chmod", "755", target], limit=ASKING_S)
        return target

    def pull(self, name: str, path: Path) -> None:
        """Copy a file of the folder here, whole or not at all."""
        partial = path.with_name(f".{path.name}.partial")
        try:
            self._adb(["pull", f"{self.folder}/{name}", str(partial.absolute())], f"copy {name} from the phone")
            try:
                partial.replace(path)
            except OSError as error:
                raise StretchError(f"adb says that it copied {name} from the phone, but it is not here: {error.strerror}") from error
        finally:
            partial.unlink(missing_ok=True)

    def shell(self, command: Sequence[str], *, limit: float | None = None) -> str:
        """Run a command on the device and give what it printed.

        Args:
            command: Its words; the device's shell sees each as one word, whatever is in it.
            limit: Seconds; those of the phone if None.
        """
        return self._adb(["shell", shlex.join(command)], f"run {command[0]} on the phone", limit).out

    def attempt(self, command: Sequence[str], what: str) -> "Ended":
        """Run a command that may fail on the device; `what` names it in messages."""
        return self._adb(["shell", shlex.join(command)], what, checked=False)

    def _adb(self, words: Sequence[str], what: str, limit: float | None = None, *, checked: bool = True) -> "Ended":
        return call(self.program, ["-s", self.serial, *words], what, limit or self.limit, checked=checked)


def find_phone(serial: str | None, limit: float) -> Phone:
    """The device with this serial number, or the only one."""
    if serial is not None and not _SERIAL.fullmatch(serial):
        raise UsageError(f"`{serial}` is no serial of a device", "`adb devices` lists them")
    program = shutil.which("adb")
    if program is None:
        raise MissingBackendError("there is no program `adb`, which phones are reached by", "install Android's platform tools")
    states = _devices(call(program, ["devices"], "list devices", ASKING_S).out)
    if not states:
        raise StretchError("adb sees no device", "plug a phone in, with USB debugging switched on")
    if serial is None and len(states) > 1:
        raise UsageError(f"adb sees {len(states)} devices: {', '.join(states)}", "choose one with --serial")
    chosen = serial or next(iter(states))
    if chosen not in states:
        raise StretchError(f"adb sees no device `{chosen}`", f"it sees {', '.join(states)}")
    state = states[chosen]
    if state != "device":
        problem, hint = next(
            (explanation for known, explanation in _STATES.items() if state.startswith(known)),
            (f"is in the state `{state}`", "look at `adb devices`"),
        )
        raise StretchError(f"the device `{chosen}` {problem}", hint)
    return Phone(program, chosen, limit)


@contextlib.contextmanager
def workspace(phone: Phone) -> Iterator[Phone]:
    """A temporary folder on the device, which is always removed at the end of the block."""
    phone.shell(["mkdir", phone.folder], limit=ASKING_S)
    try:
        yield phone
    except StretchError as error:
        if not _removed(phone):
            error.hint = f"{error.hint}; " if error.hint else ""
            error.hint += f"{phone.folder} may still be on the phone: remove it once it is there again"
        raise
    except BaseException:
        _removed(phone)
        raise
    if not _removed(phone):
        raise StretchError(f"cannot remove {phone.folder} from the phone", "remove it once the phone is there again")


def _removed(phone: Phone) -> bool:
    try:
        phone.shell(["rm", "-rf", phone.folder], limit=ASKING_S)
    except StretchError:
        return False
    return True


def call(program: str, words: Sequence[str], what: str, limit: float, *, checked: bool = True) -> Ended:
    """Run `adb`.

    Args:
        limit: Seconds after which it is ended.
        checked: Whether an exit code other than 0 is an error; that the device is gone always is.
    """
    try:
        ran = subprocess.run([program, *words], capture_output=True, timeout=limit, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise StretchError(
            f"cannot {what}: adb did not end within {limit:g} s", "look at the phone, or allow more with --time-limit"
        ) from error
    except OSError as error:
        raise StretchError(f"cannot run {program}: {error.strerror}") from error
    ended = Ended(ran.returncode, ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace"))
    if ended.code == 0:
        return ended
    if _GONE.search(ended.err):
        raise StretchError(f"cannot {what}: the device is gone ({ended.reason})", "plug it in again and start anew")
    if "No space left on device" in ended.err + ended.out:
        raise StretchError(f"cannot {what}: there is no space left there", f"free some space below {ROOT}")
    if checked:
        raise StretchError(f"cannot {what}: {ended.reason}")
    return ended


def _devices(text: str) -> dict[str, str]:
    """State by serial of what `adb devices` prints."""
    states = {}
    for line in text.partition("List of devices attached")[2].splitlines():
        serial, _, state = line.partition("\t")
        if serial.strip() and state.strip():
            states[serial.strip()] = state.strip()
    return states

"""A fake program `adb` that plays back recorded calls in their order and fails on any other call.

A transcript is a JSON list of calls::

    {"call": ["devices"], "out": "List of devices attached\\n...", "err": "", "code": 0}

Arguments in `call` may contain ``{folder}``, the folder on the phone, whose random name is set by the first call that has it. ``{here}`` is
any path of this machine. ``"gives": "text"`` is written to the last argument of a ``pull`` (``gives64``: bytes in base 64). ``"hangs": true``
never ends. ``"takes": "text"`` is the start of a pushed file. Calls with ``"often": true`` may occur any number of times. All calls go to
``log.txt`` in the transcript's folder, unexpected calls also to ``wrong.txt``.
"""

import json
import os
import re
import sys
from pathlib import Path

PROGRAM = (
    f"#!{sys.executable} -IS\n"
    + """
import base64, json, os, re, signal, sys
from pathlib import Path

transcript = Path(os.environ["ADB_TRANSCRIPT"])
state = transcript.with_name("state.json")
calls = json.loads(transcript.read_text())
played, folder = json.loads(state.read_text()) if state.exists() else (0, None)
words = sys.argv[1:]
with transcript.with_name("log.txt").open("a") as log:
    log.write(json.dumps(words) + "\\n")


def matches(pattern, words):
    global folder
    if len(pattern) != len(words):
        return False
    for wanted, word in zip(pattern, words):
        text = re.escape(wanted).replace(re.escape("{here}"), ".+")
        text = text.replace(re.escape("{folder}"), re.escape(folder) if folder else "(?P<folder>/data/local/tmp/nn-stretch-[0-9a-f]{12})", 1)
        text = text.replace(re.escape("{folder}"), re.escape(folder) if folder else "(?P=folder)")
        found = re.fullmatch(text, word, re.S)
        if not found:
            return False
        folder = folder or found.groupdict().get("folder")
    return True


def wrong(why):
    with transcript.with_name("wrong.txt").open("a") as file:
        file.write(why + "\\n")
    print(f"adb: error: unexpected call: {why}", file=sys.stderr)
    sys.exit(97)


def play(call):
    if "takes" in call and not Path(words[-2]).read_bytes().startswith(call["takes"].encode()):
        wrong(f"{words[-2]} does not begin with {call['takes']!r}")
    if "gives" in call:
        Path(words[-1]).write_text(call["gives"])
    if "gives64" in call:
        Path(words[-1]).write_bytes(base64.b64decode(call["gives64"]))
    sys.stdout.write(call.get("out", ""))
    sys.stderr.write(call.get("err", ""))
    sys.stdout.flush()
    if call.get("hangs"):
        if "ADB_HANGS" in os.environ:
            Path(os.environ["ADB_HANGS"]).write_text("now")  # a pipe: who reads it waits for this
        while True:
            signal.pause()
    sys.exit(call.get("code", 0))


for call in calls:
    if call.get("often") and matches(call["call"], words):
        play(call)
rest = [call for call in calls if not call.get("often")]
if played >= len(rest):
    wrong(f"{words} after the end of the transcript")
if not matches(rest[played]["call"], words):
    wrong(f"{words} where {rest[played]['call']} was recorded")
state.write_text(json.dumps([played + 1, folder]))
play(rest[played])
"""
)

HERE = Path(__file__).parent / "transcripts"


class Player:
    """An `adb` on PATH that plays a transcript.

    Args:
        monkeypatch: Fixture that sets PATH.
        folder: New folder for the program, transcript and logs.
    """

    def __init__(self, monkeypatch, folder):
        self.folder = folder
        folder.mkdir()
        program = folder / "adb"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("ADB_TRANSCRIPT", str(folder / "transcript.json"))

    def plays(self, calls):
        """Set the transcript: calls, or the name of a file in `transcripts`."""
        text = (HERE / calls).read_text() if isinstance(calls, str) else json.dumps(calls)
        (self.folder / "transcript.json").write_text(text)
        for name in ("state.json", "log.txt", "wrong.txt"):
            (self.folder / name).unlink(missing_ok=True)

    @property
    def log(self):
        path = self.folder / "log.txt"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ended(self):
        """Check that the whole transcript and no other call was played."""
        assert not (self.folder / "wrong.txt").exists(), (self.folder / "wrong.txt").read_text()
        calls = [call for call in json.loads((self.folder / "transcript.json").read_text()) if not call.get("often")]
        played = json.loads((self.folder / "state.json").read_text())[0]
        assert played == len(calls), calls[played]


def shell(arguments, serial="R5CT"):
    """Return a call of the device's shell for a transcript, with quoted arguments."""
    plain = re.compile(r"[\w@%+=:,./{}-]+")
    return ["-s", serial, "shell", " ".join(word if plain.fullmatch(word) else "'" + word + "'" for word in arguments)]

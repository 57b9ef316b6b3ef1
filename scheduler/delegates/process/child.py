"""The child of the `process` delegate: reads commands from stdin, one line of JSON each, and answers on stdout."""

import json
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

from predictors.errors import StretchError
from scheduler.cores import pin_thread
from scheduler.delegates.base import Compiled, Invocation, get_delegate
from scheduler.shared import opened


class Server:
    """What the child has made ready.

    Args:
        inner: Name of the delegate that does the work.
        cores: Cores that it uses; empty for any.
    """

    def __init__(self, inner: str, cores: tuple[int, ...]) -> None:
        self._delegate = get_delegate(inner).create(cores)
        self._compiled: dict[int, Compiled] = {}
        self._bound: dict[int, Invocation] = {}

    def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out one command."""
        for key in command.get("drop", ()):
            self._compiled.pop(key, None)
            self._bound.pop(key, None)
        match command["do"]:
            case "compile":
                compiled = self._delegate.compile(Path(command["model"]))
                self._compiled[command["key"]] = compiled
                return {"inputs": list(compiled.inputs.items()), "outputs": list(compiled.outputs.items())}
            case "bind":
                inputs, outputs = ([opened(description) for description in command[what]] for what in ("inputs", "outputs"))
                self._bound[command["key"]] = self._compiled[command["compiled"]].bind(inputs, outputs)
                return {}
            case "run":
                self._bound[command["bound"]].run()
                return {}
        raise StretchError(f"the child process does not know the command `{command['do']}`")


def serve(server: Server, commands: BinaryIO, answers: BinaryIO) -> None:
    """Answer each command in order until there are no more; a failure is an answer."""
    for line in commands:
        command = json.loads(line)
        try:
            answer = server.handle(command)
        except StretchError as error:
            answer = {"error": error.message, "hint": error.hint}
        except Exception as error:  # the parent raises it where it was asked for
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({**answer, "number": command["number"]}).encode() + b"\n")
        answers.flush()


def main() -> None:
    """Serve the parent: ``python -m scheduler.delegates.process.child DELEGATE CORES``."""
    inner, cores = sys.argv[1], tuple(int(core) for core in sys.argv[2].split(",") if core)
    # Libraries may print: only answers belong on the line to the parent.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pin_thread(cores[:1])
    serve(Server(inner, cores), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()

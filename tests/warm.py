"""Programs in new processes that start without the seconds of imports: forks of a process with imported packages.

Two small clients, `stretch` and `snippet` (for Python code), pass arguments, folder, environment and streams to that process.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

CLIENT = f"""\
#!{sys.executable} -IS
import json, os, socket, sys

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.path.join(os.path.dirname(sys.argv[0]), "socket"))
socket.send_fds(connection, [b"!"], [0, 1, 2])
connection.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode())
connection.shutdown(socket.SHUT_WR)
sys.exit((connection.recv(1) or b"\\x7f")[0])
"""


class WarmPrograms:
    """The two client programs and the process that they connect to, until `close`.

    Args:
        folder: Where to write the programs.
        packages: The checkout whose packages they run.
    """

    def __init__(self, folder: Path, packages: Path):
        self.folder, self.packages = folder, packages
        for name in ("stretch", "snippet"):
            (folder / name).write_text(CLIENT)
            (folder / name).chmod(0o755)
        command = [sys.executable, __file__, str(folder / "socket")]
        pipe, environment = subprocess.PIPE, os.environ | {"PYTHONPATH": str(packages)}
        self._process = subprocess.Popen(command, cwd=packages, env=environment, stdin=pipe, stdout=pipe)
        assert self._process.stdout.readline() == b"ready\n"

    def run(self, *arguments: object, cwd: Path | None = None, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program to its end, with `stretch` and `snippet` at the front of PATH."""
        path = os.pathsep.join((str(self.folder), str(Path(sys.executable).parent), os.environ["PATH"]))
        program = str(self.folder / str(arguments[0])) if arguments[0] in ("stretch", "snippet") else str(arguments[0])
        command, environment = [program, *map(str, arguments[1:])], os.environ | {"PATH": path} | variables
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    def close(self) -> None:
        self._process.communicate()


def _import_everything() -> None:
    for package in ("torch", "predictors", "scheduler", "stretch"):
        imported = importlib.import_module(package)
        for module in pkgutil.walk_packages(imported.__path__, f"{package}.") if package != "torch" else ():
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def _next_program(listener: socket.socket) -> list[Any]:
    """Fork for each request; return its arguments, folder and environment in the new process only."""
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
                pass
            continue
        streams = socket.recv_fds(connection, 1, 3)[1]
        request = json.load(connection.makefile("rb"))
        if program := os.fork():
            connection.send(bytes([os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) & 0xFF]))
            os._exit(0)
        for end in (listener, connection):
            end.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return request
    os._exit(0)


def _run_program() -> None:
    """Run the program of `sys.argv`, and end without the interpreter's shutdown, which takes half a second with these imports."""
    code: object = 1
    try:
        if Path(sys.argv[0]).name == "stretch":
            importlib.import_module("stretch.cli").app()
        else:
            sys.path[0] = ""
            exec(sys.argv.pop(1), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    sys.path[0] = os.getcwd()
    _import_everything()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.argv, place, variables = _next_program(server)
    os.chdir(place)
    os.environ.clear()
    os.environ.update(variables)
    _run_program()

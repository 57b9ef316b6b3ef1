"""Runs command lines in child processes, and replaces a process that crashed, hangs or holds too much memory."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

#: A command that takes longer hangs: on any machine, commands of the corpus take less than a hundredth of this time.
PATIENCE_S = 60


class Child:
    """A process of `tests/corpus/worker.py`."""

    def __init__(self, bundle, log):
        self._bundle, self._log = bundle, log
        self._process = None

    def ask(self, arguments):
        if self._process is None:
            self._start()
        self._process.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        self._process.stdin.flush()
        answer = self._line()
        if not answer:
            escaped = "it hung" if answer is None else f"the process ended with {self._process.wait()}"
            self.close()
            return {"code": None, "out": "", "err": self._log.read_text(errors="replace")[-2000:], "escaped": escaped}
        outcome = json.loads(answer)
        # Memory of earlier commands (arenas of threads, caches) must not count against a later command: at its memory limit,
        # the interpreter itself fails unpredictably.
        if outcome.pop("grown"):
            self.close()
        return outcome

    def close(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
            self._process = None

    def _start(self):
        # each further arena of a thread would take 64 MiB of unused address space
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "NN_STRETCH_DRIVERS": "dsp", "COLUMNS": "200"}
        command, pipe = [sys.executable, str(Path(__file__).with_name("worker.py")), str(self._bundle)], subprocess.PIPE
        with self._log.open("w") as log:
            streams = {"stdin": pipe, "stdout": pipe, "stderr": log, "text": True}
            self._process = subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[2], **streams)
        assert self._process.stdout.readline() == "ready\n", self._log.read_text()

    def _line(self):
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        return self._process.stdout.readline() if ready else None

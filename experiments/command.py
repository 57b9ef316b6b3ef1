"""Programs of experiments, and a command of `stretch` in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from predictors.errors import StretchError


def program(main: Callable[[], None]) -> None:
    """Run a program; an error is one sentence and its exit code."""
    try:
        main()
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"\nhint: {error.hint}\n" if error.hint else ""))
        sys.exit(error.exit_code)


def stretch(*words: object) -> Any:
    """Return what a command of `stretch` prints as JSON.

    Raises:
        StretchError: If it fails.
    """
    command = [sys.executable, "-P", "-c", "from stretch.cli import app; app()", *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        data = json.loads(done.stdout)
        raise StretchError(f"`stretch {words[0]}` failed: {data['error']}", data["hint"])
    return json.loads(done.stdout)

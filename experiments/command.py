"""Error handling for programs of experiments, and commands of `stretch` in separate processes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from predictors.errors import StretchError

#: Command that starts `stretch`; if the package is not installed, PYTHONPATH names its folder.
STRETCH = [sys.executable, "-P", "-c", "import sys; sys.argv[0] = 'stretch'\nfrom stretch.cli import app\napp()"]


def program(main: Callable[[], None]) -> None:
    """Run a program; an error prints one sentence and sets the exit code."""
    try:
        main()
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"\nhint: {error.hint}\n" if error.hint else ""))
        sys.exit(error.exit_code)


def stretch(*words: object, **environment: str) -> Any:
    """Run a command of `stretch` and return its JSON output.

    Args:
        words: Words of the command.
        environment: Variables that differ from those of this process.

    Raises:
        StretchError: If the command fails.
    """
    command = [*STRETCH, *map(str, words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, env=os.environ | environment)
    if done.returncode:
        data = json.loads(done.stdout)
        raise StretchError(f"`stretch {words[0]}` failed: {data['error']}", data["hint"])
    return json.loads(done.stdout)

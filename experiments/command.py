"""A command of `stretch` in a process of its own."""

import json
import subprocess
import sys
from typing import Any

from predictors.errors import StretchError


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

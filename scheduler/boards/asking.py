"""What a program on a board asks of the machine that started it: files that only that machine can make."""

import json
import os
from pathlib import Path

from predictors.errors import StretchError

#: Names the descriptors that questions are written to and answers are read from, as the agent sets it.
ASKS = "NN_STRETCH_ASKS"


def can_ask() -> bool:
    """Whether this program runs on a board, for somebody who answers."""
    return ASKS in os.environ


def ask_for_file(path: Path, question: str) -> None:
    """Have a file made by the machine that started this program, and wait for it."""
    questions, answers = map(int, os.environ[ASKS].split(","))
    line = json.dumps({"file": str(path.absolute()), "question": question}).encode() + b"\n"
    try:
        while line:
            line = line[os.write(questions, line) :]
        answer = b""
        while not answer.endswith(b"\n"):
            more = os.read(answers, 1 << 16)
            if not more:
                raise StretchError("the machine that started this does not answer any more")
            answer += more
    except OSError as error:
        raise StretchError(f"the machine that started this does not answer any more: {error.strerror}") from error
    if problem := json.loads(answer).get("problem"):
        raise StretchError(str(problem))

"""Profile of a board: measured and fitted there, copied back and validated like any other file."""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from predictors.devices import load_device
from predictors.errors import StretchError
from predictors.fits.store import fit_path
from predictors.measurements.networks import KERNELS, LATENCIES, NETWORKS, SOURCE, load_measurements
from scheduler.boards.board import Board
from scheduler.tuning.interrupt import interruption_waits
from stretch.profiling.files import answer_board
from stretch.profiling.run import check_target

#: Maximum size of a file of a profile, in bytes.
_MOST = 256 << 20


def check_here(name: str, out: Path, resume: bool) -> None:
    """Check before connecting to a board that the profile can be written here."""
    check_target(name, out)
    folder = out / f"{name}.measurements"
    if folder.exists() and not resume:
        raise StretchError(f"{folder} has measurements already", "go on with them by --resume, or choose another --name or --out")


def profile_there(board: Board, name: str, out: Path, words: Sequence[str], resume: bool, said: Callable[[str], None]) -> dict[str, Any]:
    """Measure on a board and write ``<name>.toml``, ``<name>.fit.json`` and ``<name>.measurements`` here.

    The measurements stay on the board until all are copied, so that an interruption loses nothing.

    Args:
        resume: Whether to resume measurements on the board, or else those in `out`.
        said: Called with each line that the verb prints on stderr.
    """
    there, measurements = f"profiles/{name}", f"{name}.measurements"
    known = {path.name: path for path in (out / measurements).iterdir() if path.is_file()} if (out / measurements).is_dir() else {}
    kept = board.keeps(f"{there}/{measurements}")
    if kept and not resume:
        raise StretchError(
            f"{board.host} keeps measurements for `{name}` of a run that did not come to its end",
            "go on with them by --resume, or choose another --name",
        )
    if not kept:
        board.copy_folder(f"{there}/{measurements}" if known else there, known)
    answer = board.run(["profile", f"--name={name}", "--out=.", *words, *(["--resume"] if resume else [])], there, said, answer_board)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{name}.") as folder:
        draft = Path(folder) / f"{name}.toml"
        (draft.parent / measurements).mkdir()
        for file in (
            draft.name,
            fit_path(draft).name,
            *(f"{measurements}/{name_of_file}" for name_of_file in (SOURCE, NETWORKS, LATENCIES, KERNELS)),
        ):
            (draft.parent / file).write_bytes(board.fetch(f"{there}/{file}", _MOST))
        load_device(draft)
        load_measurements(draft.parent / measurements)
        with interruption_waits():
            _take_place(draft.parent / measurements, out / measurements)
            # a profile without fits is valid, one with fits of another profile is not
            (out / fit_path(draft).name).unlink(missing_ok=True)
            os.replace(draft, out / draft.name)
            os.replace(fit_path(draft), out / fit_path(draft).name)
    board.remove(there)
    return answer | {"file": str(out / f"{name}.toml"), "measurements": str(out / measurements)}


def _take_place(new: Path, target: Path) -> None:
    if target.exists():
        old = new.with_name("old")
        os.replace(target, old)
        os.replace(new, target)
        shutil.rmtree(old)
    else:
        os.replace(new, target)

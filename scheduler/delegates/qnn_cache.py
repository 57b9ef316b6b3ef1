"""Compiled subgraphs of the DSP (EPContext files) in the user's cache, so that a session starts without compiling."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Makes a session from a file with session settings.
Open = Callable[[Path, dict[str, str]], Any]


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/nn-stretch/qnn``, below ``~/.cache`` by default."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nn-stretch" / "qnn"


def cached_context(folder: Path | None, model: Path, versions: str, open_session: Open) -> Any:
    """A session from the cache, or one made from `model` and put there.

    A file is found by the SHA-256 of the model and of the versions, so one that
    is there fits. One that cannot be read is made again. Where the folder
    cannot be written, nothing is kept.
    """
    folder = folder or cache_folder()
    key = hashlib.sha256(versions.encode() + b"\0" + model.read_bytes()).hexdigest()
    kept = folder / f"{key}.onnx"
    if kept.is_file():
        try:
            return open_session(kept, {})
        except Exception:
            # Whatever is wrong with a cached file, the model it was made of is still there.
            kept.unlink(missing_ok=True)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            fresh = Path(draft) / "context.onnx"
            settings = {"ep.context_enable": "1", "ep.context_file_path": str(fresh), "ep.context_embed_mode": "1"}
            session = open_session(model, settings)
            if fresh.is_file():
                fresh.replace(kept)
            return session
    except OSError:
        return open_session(model, {})

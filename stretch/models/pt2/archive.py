"""The zip file that torch.export writes, read without trust: records within bounds, no pickle, nothing written to disk."""

import io
import zipfile
import zlib
from pathlib import Path

from predictors.errors import StretchError
from predictors.files import read_bytes

#: Largest archive, as of an ONNX file.
MAX_BYTES = (1 << 31) - 1

#: Records of an archive: a weight is one.
MAX_RECORDS = 100_000

FORMAT, VERSION = b"pt2", b"0"

_AGAIN = "save it again with torch.export.save of torch 2.9 or newer"


class Archive:
    """The records of a file by name, without the folder that they all lie in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        content = read_bytes(path, "model", MAX_BYTES)
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(content))
            entries = self._zip.infolist()
        # zipfile raises whatever its own reading of a damaged file runs into.
        except Exception as error:
            raise StretchError(f"{path} is no archive of torch.export: {_line(error)}", _AGAIN) from error
        if len(entries) > MAX_RECORDS:
            raise StretchError(f"{path} has more than {MAX_RECORDS} records, which is no network that can be branched")
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for entry in entries:
            name = entry.filename.partition("/")[2]
            if name in self._entries:
                raise StretchError(f"{path} is damaged: it has two records `{name[:80]}`", _AGAIN)
            self._entries[name] = entry
        # Torch stores records as they are; compressed ones could be of any size.
        if sum(entry.file_size for entry in entries) > len(content):
            raise StretchError(f"{path} is damaged: its records are larger than the file", _AGAIN)
        mapping = {name: self.read(name).strip() if name in self._entries else b"" for name in ("archive_format", "archive_version")}
        if mapping["archive_format"] != FORMAT:
            raise StretchError(f"{path} is no archive of torch.export", _AGAIN)
        if mapping["archive_version"] != VERSION:
            raise StretchError(f"{path} has version {mapping['archive_version'][:20]!r} of the format, version 0 is read", _AGAIN)

    @property
    def names(self) -> list[str]:
        """Names of its records."""
        return list(self._entries)

    def read(self, name: str) -> bytes:
        """The content of a record."""
        entry = self._entries.get(name)
        if entry is None:
            raise StretchError(f"{self._path} has no record `{name[:80]}`", _AGAIN)
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise StretchError(f"record `{name[:80]}` of {self._path} is compressed or encrypted, which torch does not do", _AGAIN)
        try:
            return self._zip.read(entry)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError) as error:
            raise StretchError(f"record `{name[:80]}` of {self._path} is damaged: {_line(error)}", _AGAIN) from error


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]

"""Files by name: a path, a folder or a pattern, on a disk or in an object store."""

from __future__ import annotations

import fnmatch
import glob
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.fs as pafs
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO

from modak.errors import LakeError, NotFound

_WILDCARDS = "*?["


@dataclass(frozen=True)
class Listed:
    """A file. ``location`` opens again through PyIceberg's FileIO."""

    location: str
    bytes: int
    modified: datetime | None = None


def find_files(place: str, io_properties: Mapping[str, str], suffix: str = "") -> list[Listed]:
    """The file of this name, those of a folder with this ending, or those that match a pattern; NotFound where there is none."""
    found = sorted(_remote(place, io_properties, suffix) if "://" in place else _local(place, suffix), key=lambda one: one.location)
    if not found:
        raise NotFound(f"there is no file {place}", hint=f"give a file, a folder with {suffix or 'files'} in it, or a pattern in quotes")
    return found


def files_below(folder: str, io_properties: Mapping[str, str]) -> Iterator[Listed]:
    """Every file in a folder of the lake and in the folders in it; none where there is no such folder."""
    prefix, filesystem, path = _opened(folder, io_properties)
    for info in filesystem.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True)):
        if info.is_file:
            yield Listed(prefix + info.path, info.size, info.mtime.replace(tzinfo=UTC) if info.mtime is not None else None)


def remove_below(folder: str, io_properties: Mapping[str, str]) -> None:
    """Everything in a folder of the lake, and on a disk the folder itself; object stores have none."""
    _, filesystem, path = _opened(folder, io_properties)
    if isinstance(filesystem, pafs.LocalFileSystem):
        shutil.rmtree(path, ignore_errors=True)
    elif filesystem.get_file_info(path).type != pafs.FileType.NotFound:
        filesystem.delete_dir(path)


def _local(place: str, suffix: str) -> Iterator[Listed]:
    path = Path(place)
    if path.is_dir():
        names = [found for found in path.rglob(f"*{suffix}") if found.is_file()]
    else:
        # Path.glob takes no pattern from the root on.
        matches = [Path(name) for name in glob.glob(place, recursive=True)]  # noqa: PTH207
        names = [path] if path.is_file() else [name for name in matches if name.is_file()]
    for name in names:
        # A plain path: in a file: URI some characters would mean something.
        yield Listed(str(name.absolute()), name.stat().st_size)


def _remote(place: str, io_properties: Mapping[str, str], suffix: str) -> Iterator[Listed]:
    wild = min((place.index(letter) for letter in _WILDCARDS if letter in place), default=None)
    if wild is None:
        prefix, filesystem, path = _opened(place, io_properties)
        info = filesystem.get_file_info(path)
        if info.is_file:
            yield Listed(prefix + path, info.size)
        else:
            yield from (one for one in files_below(place, io_properties) if one.location.endswith(suffix))
        return
    folder = place[:wild].rsplit("/", 1)[0]
    yield from (one for one in files_below(folder, io_properties) if fnmatch.fnmatchcase(one.location, place))


def _opened(location: str, io_properties: Mapping[str, str]) -> tuple[str, pafs.FileSystem, str]:
    """What stands before a path in its location, the file system, and the path in it."""
    io = load_file_io(dict(io_properties), location)
    if not isinstance(io, PyArrowFileIO):
        raise LakeError("files of this kind of storage cannot be listed", hint="use file: or s3: locations", location=location)
    scheme, netloc, path = io.parse_location(location, dict(io_properties))
    filesystem = io.fs_by_scheme(scheme, netloc)
    return ("file://" if scheme == "file" else f"{scheme}://"), filesystem, path

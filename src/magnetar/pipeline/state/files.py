"""Files below one directory of any fsspec file system: durable writes, creation that fails when somebody was faster.

On local disks a file is written under a temporary name, synced, and linked to its own name, which is atomic and fails when the name
is taken. Object stores do the same with one conditional put (fsspec `pipe_file(mode="create")`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import fsspec
from fsspec.implementations.local import LocalFileSystem

from magnetar.base.errors import InvalidArgumentError

if TYPE_CHECKING:
    from magnetar.pipeline.state.hot_runs import HotRuns

TEMPORARY: Final = ".tmp-"
"""What the names of unfinished files begin with; nothing reads them, the garbage collection removes them."""


class StateFiles:
    """`root`: a path, or a URL as fsspec takes it (`s3://bucket/dir`, `memory://dir`)."""

    def __init__(self, root: str, options: dict[str, Any] | None = None, hot: HotRuns | None = None) -> None:
        """`hot`: where whoever reads runs often keeps them."""
        self.hot = hot
        self.root_url = root
        self.options = dict(options or {})
        try:
            self.fs, root_path = fsspec.core.url_to_fs(root, **self.options)
        except (ValueError, ImportError) as error:
            raise InvalidArgumentError(f"state directory {root!r}: {error}") from error
        self.root: str = root_path.rstrip("/")
        self.local = isinstance(self.fs, LocalFileSystem)

    def path(self, name: str) -> str:
        """The file system's own path of `name`, which is relative to the root."""
        return f"{self.root}/{name}"

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        data: bytes = self.fs.cat_file(self.path(name))
        return data

    def tail(self, name: str, size_bytes: int) -> bytes:
        """The last bytes of a file. Raises FileNotFoundError."""
        data: bytes = self.fs.cat_file(self.path(name), start=-size_bytes)
        return data

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name)) if self.local else bool(self.fs.exists(self.path(name)))

    def size(self, name: str) -> int:
        """In bytes. Raises FileNotFoundError."""
        return int(self.fs.size(self.path(name)))

    def create(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """A new file, durable on return unless nothing would miss it. Raises FileExistsError when the name is taken, whoever took it."""
        path = self.path(name)
        if not self.local:
            self.fs.pipe_file(path, data, mode="create")
            return
        directory, base = os.path.split(path)
        os.makedirs(directory, exist_ok=True)
        temporary = os.path.join(directory, f"{TEMPORARY}{uuid4().hex}-{base}")
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.link(temporary, path)
        finally:
            self.remove_path(temporary)
        if durable:
            _sync_directory(directory)

    def names(self, directory: str = "") -> list[str]:
        """Names of the files in a directory below the root, sorted, without unfinished ones; [] when there is none.

        Whoever follows a pipeline asks many times a second: on local disks no file is looked at.
        """
        if self.local:
            try:
                with os.scandir(self.path(directory) if directory else self.root) as entries:
                    return sorted(
                        each.name for each in entries if not each.name.startswith(TEMPORARY) and each.is_file()
                    )
            except FileNotFoundError:
                return []
        return [name for name, _ in self.listed(directory) if not name.startswith(TEMPORARY)]

    def listed(self, directory: str = "") -> list[tuple[str, float | None]]:
        """(name, time of the last change in seconds since the epoch, None where the file system does not say), sorted."""
        try:
            found = self.fs.ls(self.path(directory) if directory else self.root, detail=True, refresh=True)
        except FileNotFoundError:
            return []
        except TypeError:  # this file system keeps no listings that could be refreshed
            found = self.fs.ls(self.path(directory) if directory else self.root, detail=True)
        files = [
            (os.path.basename(entry["name"].rstrip("/")), _changed_s(entry))
            for entry in found
            if entry["type"] == "file"
        ]
        return sorted(files)

    def remove(self, name: str) -> None:
        """A file that is missing already is fine."""
        self.remove_path(self.path(name))

    def remove_path(self, path: str) -> None:
        """The same by the file system's own path."""
        try:
            self.fs.rm_file(path)
        except FileNotFoundError:
            pass


def _changed_s(entry: dict[str, Any]) -> float | None:
    changed = entry.get("mtime", entry.get("LastModified", entry.get("created")))
    if changed is None or isinstance(changed, int | float):
        return changed
    return float(changed.timestamp())


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

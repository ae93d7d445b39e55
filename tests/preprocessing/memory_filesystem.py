"""A file system of Beam's kind that is not the local one: files in this process, under memory://."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, ClassVar

from apache_beam.io.filesystem import BeamIOError, FileMetadata, FileSystem

FILES: dict[str, bytes] = {}


class _Sink(io.BytesIO):
    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def close(self) -> None:
        FILES[self._path] = self.getvalue()
        super().close()


class MemoryFileSystem(FileSystem):
    SCHEME: ClassVar[str] = "memory"

    @classmethod
    def scheme(cls) -> str:
        return cls.SCHEME

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *(path.strip("/") for path in paths)])

    def split(self, path: str) -> tuple[str, str]:
        head, _, tail = path.rpartition("/")
        return head, tail

    def mkdirs(self, path: str) -> None:
        pass

    def has_dirs(self) -> bool:
        return False

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        return (FileMetadata(path, len(data), 0) for path, data in FILES.items() if path.startswith(dir_or_prefix))

    def create(self, path: str, *_: Any, **__: Any) -> io.BytesIO:
        return _Sink(path)

    def open(self, path: str, *_: Any, **__: Any) -> io.BytesIO:
        if path not in FILES:
            raise BeamIOError("no such object", {path: FileNotFoundError(path)})
        return io.BytesIO(FILES[path])

    def copy(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        for source, destination in zip(source_file_names, destination_file_names, strict=True):
            FILES[destination] = FILES[source]

    def rename(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        self.copy(source_file_names, destination_file_names)
        self.delete(source_file_names)

    def exists(self, path: str) -> bool:
        return path in FILES

    def size(self, path: str) -> int:
        return len(FILES[path])

    def last_updated(self, path: str) -> float:
        return 0.0

    def checksum(self, path: str) -> str:
        return str(len(FILES[path]))

    def metadata(self, path: str) -> FileMetadata:
        return FileMetadata(path, len(FILES[path]), 0)

    def delete(self, paths: list[str]) -> None:
        for path in paths:
            if FILES.pop(path, None) is None:
                raise BeamIOError("no such object", {path: FileNotFoundError(path)})

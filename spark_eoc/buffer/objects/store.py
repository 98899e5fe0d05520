"""The requests to an object store, and nothing else: create, get, list, delete.

Credentials and endpoints come from the environment, as the stores' own tools name them; they are
in no URL, no repr and no message. ``obstore`` is imported by the process that opens a store, so
that code which travels to others needs it only where such a buffer is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any, Protocol, TypeVar

from spark_eoc.errors import ConfigError

T = TypeVar("T")

#: What a URL of a buffer may begin with.
SCHEMES = ("s3", "s3a", "gs", "az")
_TEST_SCHEMES = ("file", "memory")
_URL = re.compile(r"([a-z][a-z0-9]+)://([^/?#@]*)((?:/[^/?#@]+)*)/?")
_RETRY: dict[str, Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}


class Objects(Protocol):
    """A folder of objects. Each call is one request, but for a long listing; OSError where the
    store refuses or can't be reached, and then a change may have been made or not."""

    url: str

    def create(self, name: str, data: bytes) -> bool:
        """Creates an object whole, or returns False: one of that name is there already."""

    def get(self, name: str) -> memoryview | None:
        """All bytes of an object; None if there is none."""

    def head(self, name: str, length: int) -> memoryview | None:
        """Its first ``length`` bytes; None if there is none."""

    def names(self, folder: str) -> list[str]:
        """The sorted names below ``folder/``, without it."""

    def delete(self, names: Sequence[str]) -> None:
        """Deletes objects, in any order; those that aren't there are passed over."""


def is_object_url(path: str) -> bool:
    """Whether ``path`` names an object store, and not a folder on a disk."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme in SCHEMES


def checked_url(url: str) -> str:
    """``url`` in its one form. Raises ConfigError, which doesn't repeat a URL that may hold a
    secret, unless it is scheme, bucket and prefix alone."""
    match = _URL.fullmatch(url.strip())
    if match is None:
        raise ConfigError(
            "the URL of a buffer in an object store has a scheme, a bucket and a prefix, and "
            "nothing else (the one given is not shown, since it may hold credentials)",
            applied="nothing",
            next_step="write s3://bucket/prefix, gs://bucket/prefix or az://container/"
            "prefix, and give credentials in the environment",
        )
    scheme, bucket, prefix = match.groups()
    if not (bucket and prefix) and scheme not in _TEST_SCHEMES:
        raise ConfigError(
            f"the URL {url.strip()!r} names no prefix in a bucket",
            applied="nothing",
            next_step="give each buffer a prefix of its own, such as s3://bucket/clicks",
        )
    return f"{scheme}://{bucket}{prefix}"


class ObstoreObjects(Objects):
    """:class:`Objects` by the package ``obstore``."""

    def __init__(self, url: str, *, store: Any = None) -> None:
        """``store`` replaces the one that ``url`` names, in tests. Raises ConfigError without
        obstore, or for a URL or settings that it refuses."""
        self.url = checked_url(url)
        self._obstore = _import_obstore()
        self._gone = (FileNotFoundError, self._obstore.exceptions.NotFoundError)
        self._store = store if store is not None else self._open()

    def __repr__(self) -> str:
        # obstore's own repr shows what it was configured with.
        return f"ObstoreObjects({self.url!r})"

    def create(self, name: str, data: bytes) -> bool:
        def put() -> bool:
            try:
                self._obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return False
            return True

        return self._asking(f"create {name}", put)

    def get(self, name: str) -> memoryview | None:
        def fetch() -> memoryview | None:
            try:
                return memoryview(self._obstore.get(self._store, name).bytes())
            except self._gone:
                return None

        return self._asking(f"get {name}", fetch)

    def head(self, name: str, length: int) -> memoryview | None:
        def fetch() -> memoryview | None:
            try:
                return memoryview(
                    self._obstore.get_range(self._store, name, start=0, length=length)
                )
            except self._gone:
                return None

        return self._asking(f"get {name}", fetch)

    def names(self, folder: str) -> list[str]:
        def fetch() -> list[str]:
            pages = self._obstore.list(self._store, folder, chunk_size=1000)
            return sorted(meta["path"][len(folder) + 1 :] for page in pages for meta in page)

        return self._asking(f"list {folder}", fetch)

    def delete(self, names: Sequence[str]) -> None:
        def drop(which: Sequence[str] | str) -> bool:
            try:
                self._obstore.delete(self._store, which)
            except self._gone:
                return False
            return True

        wanted = list(names)
        # Some stores take many names in one request, and some stop at the first that isn't there.
        if wanted and not self._asking("delete", lambda: drop(wanted)):
            for name in wanted:
                self._asking("delete", partial(drop, name))

    def _open(self) -> Any:
        more: dict[str, Any] = {}
        if not self.url.startswith(tuple(f"{scheme}://" for scheme in _TEST_SCHEMES)):
            more = {"retry_config": _RETRY}
        elif self.url.startswith("file://"):
            more = {"mkdir": True}
        try:
            return self._obstore.store.from_url(self.url, **more)
        except (self._obstore.exceptions.BaseError, ValueError, OSError) as error:
            raise ConfigError(
                f"the object store of {self.url} can't be used: {_plain(error)}",
                applied="nothing",
                next_step="give region and credentials in the environment (such as AWS_REGION, "
                "AWS_ACCESS_KEY_ID), or run where the platform gives them",
            ) from None

    def _asking(self, what: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except (self._obstore.exceptions.BaseError, OSError) as error:
            # `from None`: what obstore says may hold a signed URL.
            raise OSError(f"could not {what} in {self.url}: {_plain(error)}") from None


def _import_obstore() -> Any:
    try:
        import_module("obstore.store")
        return import_module("obstore")
    except ImportError as error:
        raise ConfigError(
            "a buffer in an object store needs the package obstore, which isn't installed here",
            applied="nothing",
            next_step="pip install 'spark-eoc[objectstore]', on the driver and on every executor",
        ) from error


def _plain(error: BaseException) -> str:
    """The first line of a message, without the query part of any URL: it may be signed."""
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {re.sub(r'[?][^ )]*', '', first)}"

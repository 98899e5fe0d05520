"""What the system says about a path, in plain words."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_eoc.errors import ConfigError, LogFullError

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


def full_error(directory: Path, error: OSError) -> LogFullError:
    """The error for a disk without space."""
    return LogFullError(
        f"no space is left for buffer {directory}: {error}",
        applied="nothing of this write; what is durable stays",
        next_step="free space, or let the queries commit so that segments are trimmed",
        path=str(directory),
    )


@contextmanager
def refusing(directory: Path) -> Iterator[None]:
    """Turns OSError into LogFullError for a full disk, else into ConfigError: this path is none
    that a buffer can be kept in."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_ERRORS:
            raise full_error(directory, error) from error
        raise ConfigError(
            f"bufferPath {directory} can't be created, appended to and synced: {error}",
            applied="nothing",
            next_step="use a directory on a local disk that this user may write",
            path=str(directory),
        ) from error

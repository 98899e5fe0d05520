"""A function as a script: ``python -m spark_eoc.testing.function_run FILE`` runs what FILE holds.

The file is a function pickled by value, so that it may come from a test module that nobody can
import. It is called with a fresh session and its :class:`~spark_eoc.testing.place.Place`, starts
its queries, and the process lives as long as all of them do.
"""

from __future__ import annotations

import inspect
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

import spark_eoc
from spark_eoc.errors import ConfigError
from spark_eoc.testing.place import Place
from spark_eoc.testing.session import build_session

#: How long Spark may take to tell of a query that has ended.
_ENDED_S = 10
#: Exit code of a script whose query ended with an error.
QUERY_FAILED = 3


def check_query(query: object) -> None:
    """ConfigError for what is neither a function of a session and a place, nor a script."""
    if callable(query):
        try:
            inspect.signature(query).bind(None, None)
        except TypeError as error:
            raise ConfigError(
                f"{query!r} can't be called with (spark, place): {error}",
                applied="nothing was started",
                next_step="take a session and a Place, and start the query with them",
            ) from error
    elif not isinstance(query, str | os.PathLike) or not Path(query).is_file():
        raise ConfigError(
            f"there is no script {str(query)!r}",
            applied="nothing was started",
            next_step="pass the path of a script, or a function of (spark, place)",
        )


def command_of(
    function: Callable[..., Any], file: str | os.PathLike[str], settings: dict[str, str]
) -> Sequence[str]:
    """Saves the function and returns the command that runs it with this interpreter.

    ConfigError for one that can't be pickled.
    """
    module = sys.modules.get(function.__module__)
    if module is not None and not module.__name__.startswith("spark_eoc"):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        data = cloudpickle.dumps((function, settings))  # type: ignore[no-untyped-call]
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(
            f"{name!r} can't be sent to a process of its own: {error}",
            applied="nothing was started",
            next_step="let it use its arguments (place.mysql_url), and no fixture of the test",
        ) from error
    Path(file).write_bytes(data)
    return [sys.executable, "-m", "spark_eoc.testing.function_run", str(file)]


def main(file: str) -> int:
    """Runs the function's queries until one of them ends; one may have, before this looks."""
    function, settings = pickle.loads(Path(file).read_bytes())  # noqa: S301  our own file
    spark = build_session(settings)
    # In a development install Spark does not find the source by itself.
    spark_eoc.register(spark)
    function(spark, Place.here())
    try:
        if not spark.streams.active and not spark.streams.awaitAnyTermination(_ENDED_S):
            sys.stderr.write("the function started no streaming query\n")
            return QUERY_FAILED
        spark.streams.awaitAnyTermination()
    except Exception as error:  # noqa: BLE001  it ends the script, as in a user's own
        sys.stderr.write(f"{error}\n")
        return QUERY_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

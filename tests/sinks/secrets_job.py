"""Run as a script: both writers, with passwords, in a session that shows all it can.

``FOLDER MYSQL_URL REDIS_URL``; the password is in the environment, as users give it. What an
operator might keep or look at goes to files of FOLDER or to the standard outputs.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import spark_eoc
from spark_eoc import MySQLWriter, RedisWriter, fan_out
from spark_eoc.sinks.task import REPORT_SCHEMA, StagePass, WritePass
from spark_eoc.testing.session import build_session

PASSWORD = os.environ["SPARK_EOC_MYSQL_PASSWORD"]
#: Not secret, in the same places: what finds this could find a password.
CANARY = os.environ["CANARY"]
WRONG = PASSWORD + "-wrong"


def with_password(url: str, password: str) -> str:
    return url.replace("app@", f"app:{quote(password, safe='')}@")


def mysql(url: str, **more: Any) -> MySQLWriter:
    return MySQLWriter(url, "t", create_table=True, **more)


def redis(url: str, **more: Any) -> RedisWriter:
    return RedisWriter(url, key="row:{id}", command="hset", retry_minutes=0.01, **more)


def writers(mysql_url: str, redis_url: str) -> list[Any]:
    """A writer for each way to give a password, and all that may hold one."""
    made = [
        build(url, **more)
        for build, plain in ((mysql, mysql_url), (redis, redis_url))
        for url, more in (
            (plain, {}),
            (plain, {"password": PASSWORD}),
            (with_password(plain, PASSWORD), {}),
        )
    ]
    sentinel = f"redis+sentinel://app:{quote(PASSWORD, safe='')}@127.0.0.1:1/main"
    made += [redis(sentinel), redis(f"{sentinel}?sentinel_password={quote(PASSWORD, safe='')}")]
    return [*made, fan_out(made[0], made[5])]


def show_objects(folder: Path, made: list[Any]) -> None:
    """Representations and pickles, by reference and by value."""
    for number, writer in enumerate(made):
        print(repr(writer), str(writer), f"{writer}", vars(writer))
        sinks = [one._sink for one in getattr(writer, "_writers", [writer])]
        print(sinks, [vars(sink) for sink in sinks])
        passes = [kind(sinks[0], ("id",), "w", 0, 1, "token") for kind in (WritePass, StagePass)]
        for what, value in (("writer", writer), ("passes", passes), ("sinks", sinks)):
            for dumps in (pickle.dumps, cloudpickle.dumps):
                (folder / f"{what}-{number}-{dumps.__module__}").write_bytes(dumps(value))


def session(folder: Path) -> SparkSession:
    """With its UI, an event log, and DEBUG logs of Python and of Spark on standard error."""
    (folder / "events").mkdir()
    spark = build_session(
        {
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file:{folder}/events",
            "spark.app.name": CANARY,
            "spark.app.canary": CANARY,
            "spark.sql.ui.explainMode": "extended",
        }
    )
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    spark_eoc.register(spark)
    return spark


def run(spark: SparkSession, folder: Path, name: str, writer: Any) -> None:
    """A streaming query of one batch; what it raises is shown as a user would show it."""
    frame = spark.readStream.schema("id BIGINT, v STRING").json(f"{folder}/in")
    query = (
        frame.repartition(2, "id")
        .writeStream.queryName(name)
        .foreachBatch(writer)
        .option("checkpointLocation", f"{folder}/checkpoint-{name}")
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
        print(name, "ended", query.lastProgress)
    except Exception as error:
        print(f"{name} failed: {type(error).__name__}")
        logging.exception("%s failed", name)
        print("".join(traceback.format_exception(error)), query.exception())
        while error is not None:
            print(repr(error), error.args, vars(error))
            error = error.__cause__ or error.__context__  # type: ignore[assignment]


def fetch(base: str, path: str, file: Path) -> Any:
    """Keeps a page of the UI."""
    with urllib.request.urlopen(base + path, timeout=60) as answer:
        body = answer.read()
    file.write_bytes(body)
    return json.loads(body) if path.startswith("/api") else None


def show_ui(spark: SparkSession, folder: Path) -> None:
    """The REST answers and the pages that show settings, plans and queries."""
    base = str(spark.sparkContext.uiWebUrl).replace("//localhost", "//127.0.0.1")
    app = spark.sparkContext.applicationId
    rest = f"/api/v1/applications/{app}"
    for name in ("environment", "jobs", "stages?details=true", "executors", "sql?length=500"):
        found = fetch(base, f"{rest}/{name}", folder / f"rest-{name.partition('?')[0]}.json")
        if name.startswith("sql"):
            for run in found:
                number = run["id"]
                fetch(base, f"{rest}/sql/{number}", folder / f"rest-sql-{number}.json")
                page = f"/SQL/execution/?id={number}"
                fetch(base, page, folder / f"page-sql-{number}.html")
    for name in ("environment", "SQL", "jobs", "stages", "executors", "StreamingQuery"):
        fetch(base, f"/{name}/", folder / f"page-{name}.html")


def main(folder: str, mysql_url: str, redis_url: str) -> None:
    place = Path(folder)
    made = writers(mysql_url, redis_url)
    (place / "in").mkdir()
    (place / "in" / "rows.json").write_text("".join(f'{{"id":{i},"v":"{i}"}}\n' for i in range(8)))
    spark = session(place)
    show_objects(place, made)
    print(CANARY)
    logging.getLogger("spark_eoc").debug("a record with %s", CANARY)
    spark.sparkContext.setLogLevel("DEBUG")
    run(spark, place, "partition", made[-1])
    run(spark, place, "batch", fan_out(
        mysql(with_password(mysql_url, PASSWORD), atomicity="batch", writer_id="b"),
        redis(redis_url, password=PASSWORD, atomicity="batch", writer_id="b"),
    ))  # fmt: skip
    spark.sparkContext.setLogLevel("INFO")
    run(spark, place, "wrong-mysql", mysql(mysql_url, password=WRONG))
    run(spark, place, "wrong-redis", redis(redis_url, password=WRONG))
    run(spark, place, "bad-mysql", MySQLWriter(mysql_url, "narrow", atomicity="batch"))
    run(spark, place, "bad-redis", RedisWriter(redis_url, key="bad:{id}", command="hset"))
    task = WritePass(made[0]._sink, ("id", "v"), "w", 0, 1, "t")
    spark.range(1).mapInArrow(task, REPORT_SCHEMA).explain("extended")
    show_ui(spark, place)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

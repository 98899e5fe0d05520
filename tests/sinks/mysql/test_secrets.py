"""A password shows nowhere: not in repr, logs, exceptions, plans, or a pickle's text."""

from __future__ import annotations

import logging
import pickle

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from spark_eoc.errors import ConfigError, SparkEocError
from spark_eoc.sinks.mysql import MySQLWriter
from spark_eoc.sinks.mysql.address import PASSWORD_ENVIRONMENT, parse_url
from spark_eoc.sinks.mysql.connection import connect
from spark_eoc.sinks.store import Column
from spark_eoc.sinks.task import REPORT_SCHEMA, WritePass
from spark_eoc.testing.plugin import Database

PASSWORD = "s3cr3t-Pa55w0rd!"


def writers(port: int = 3306, database: str = "shop") -> list[MySQLWriter]:
    """A writer for each way to give a password."""
    url = f"mysql://app@127.0.0.1:{port}/{database}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSWORD_ENVIRONMENT, PASSWORD)
        from_environment = MySQLWriter(url, "t")
    return [
        from_environment,
        MySQLWriter(url, "t", password=PASSWORD),
        MySQLWriter(url.replace("app@", "app:s3cr3t-Pa55w0rd%21@"), "t"),
    ]


def test_the_password_travels_and_is_not_readable() -> None:
    """Environment, argument and URL; pickled by pickle and by value."""
    for writer in writers():
        assert writer._sink.address.password.reveal() == PASSWORD  # type: ignore[attr-defined]
        texts = [repr(writer), str(writer), repr(vars(writer)), repr(writer._sink)]
        # What was pickled by value is never loaded in this process: cloudpickle would give our
        # own classes, which it recognises, methods that see another copy of the modules.
        texts += [dumps(writer).decode("latin-1") for dumps in (pickle.dumps, cloudpickle.dumps)]
        copy = pickle.loads(pickle.dumps(writer))
        assert copy._sink.address.password.reveal() == PASSWORD
        for text in texts:
            assert PASSWORD not in text
            assert "s3cr3t" not in text


def test_a_refused_login_shows_no_password(
    mariadb: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the message, nor its cause, nor a log record."""
    caplog.set_level(logging.DEBUG)
    for writer in writers(mariadb.port, mariadb.name):
        with pytest.raises(SparkEocError) as caught:
            writer._sink.check([Column("id", "bigint")])
        error: BaseException | None = caught.value
        while error is not None:
            assert PASSWORD not in f"{error} {error!r} {error.args}"
            error = error.__cause__ or error.__context__
        assert "1045" in str(caught.value)
    assert PASSWORD not in caplog.text


def test_a_plan_shows_no_password(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The function in the plan has a name, and no content."""
    for writer in writers():
        task = WritePass(writer._sink, ("id",), "w", 0, 1, "t")
        spark.range(1).mapInArrow(task, REPORT_SCHEMA).explain(True)
    shown = capsys.readouterr()
    assert "MapInArrow" in shown.out
    assert PASSWORD not in shown.out + shown.err


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://app:{PASSWORD}@h:port/db",
        f"postgres://app:{PASSWORD}@h/db",
        f"mysql://app:{PASSWORD}@h",
        f"mysql://app:{PASSWORD}@h/db?nonsense=1",
    ],
)
def test_a_url_that_cannot_be_used_is_not_repeated(url: str) -> None:
    """The message says what is wrong with it, and the right form."""
    with pytest.raises(ConfigError) as caught:
        parse_url(url, None)
    assert PASSWORD not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_connection_that_checks_no_certificate_loads_none(mariadb: Database) -> None:
    """Loading all of the system's takes 25 ms, and a batch makes four connections."""
    writer = MySQLWriter(mariadb.url(), "t")
    connection = connect(writer._sink.address)  # type: ignore[attr-defined]
    try:
        assert connection.ctx.cert_store_stats()["x509"] == 0
    finally:
        connection.close()

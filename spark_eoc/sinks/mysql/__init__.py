"""MySQL and MariaDB."""

from spark_eoc.sinks.mysql.writer import MySQLWriter

__all__ = ["MySQLWriter"]

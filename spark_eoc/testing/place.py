"""Where a query under kills finds its input, its folders and its servers.

A script reads them from the environment (``Place.here()``, or the variables by name), or from
placeholders such as ``{checkpoint}`` in its arguments. A function gets a :class:`Place`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import unquote, urlsplit

from spark_eoc.errors import ConfigError

PREFIX = "EOC_"


@dataclass(frozen=True)
class Place:
    """Everything that the harness gives to a query; what there is not is an empty string.

    ``input`` is a folder in which text files appear, ``listen`` the ``host:port`` to which lines
    are sent by the acknowledged protocol; a query reads one of them.
    """

    folder: str = ""
    input: str = ""
    listen: str = ""
    buffer: str = ""
    checkpoint: str = ""
    mysql_url: str = ""
    redis_url: str = ""

    @classmethod
    def here(cls) -> Place:
        """From the variables that the harness has set for this process."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: os.environ.get(PREFIX + name.upper(), "") for name in names})

    @property
    def environment(self) -> dict[str, str]:
        """``EOC_CHECKPOINT`` and so on, for a script."""
        return {
            PREFIX + field.name.upper(): value
            for field in fields(self)
            if (value := getattr(self, field.name))
        }

    @property
    def port(self) -> int:
        """The port of ``listen``."""
        return int(self.listen.rpartition(":")[2])

    @property
    def mysql(self) -> dict[str, Any]:
        """``mysql_url`` as arguments of ``pymysql.connect``; ConfigError where there is none, since
        they would mean whatever server runs on this host."""
        if not self.mysql_url:
            raise ConfigError(
                "place.mysql: the query was given no MariaDB or MySQL",
                next_step="pass mariadb= to eoc_chaos or eoc_surgery, or --mariadb to spark-eoc "
                "chaos",
            )
        parts = urlsplit(self.mysql_url)
        return {
            "host": parts.hostname,
            "port": parts.port or 3306,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.lstrip("/")),
        }

    def fill(self, argument: str) -> str:
        """``argument`` with this place's values for ``{name}``; other braces stay as they are."""
        for field in fields(self):
            argument = argument.replace("{" + field.name + "}", getattr(self, field.name))
        return argument

"""PyMySQL's connection, with stricter manners."""

from __future__ import annotations

import logging
import ssl
from typing import Any

import pymysql
from pymysql.constants import CLIENT

LOGGER = logging.getLogger("spark_eoc.sinks.mysql")
NO_TLS, NO_PLUGIN = 2026, 2059
#: Warnings and notes that say that a value was stored otherwise than it was given.
HARM = frozenset({1263, 1264, 1265, 1292, 1300, 1364, 1365, 1366, 1406, 1411, 1441, 1690})


class HarmError(pymysql.err.DataError):  # type: ignore[misc]
    """A value was stored otherwise than given: the statement is applied, unlike one that failed."""


class Client(pymysql.connections.Connection):  # type: ignore[misc]
    """A connection that raises where a statement harmed a value with a warning or a note only.

    With ``needs_tls`` nothing is sent to a server without TLS. Without TLS options the client takes
    what the server offers, and checks no certificate. For that, PyMySQL loads all of the system's
    certificates at each connection: 25 ms each.
    """

    def __init__(self, needs_tls: bool, **options: Any) -> None:
        self._needs_tls = needs_tls
        super().__init__(**options)

    _result: Any

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        affected: int = super().query(sql, unbuffered)
        result = self._result
        if result.warning_count and result.description is None:
            warnings = self.show_warnings()  # forgets the result
            self._result = result
            for level, code, text in warnings or ():
                if code in HARM:
                    raise HarmError(code, text)
                LOGGER.debug("%s %s: %s", level, code, text)
        return affected

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        if sslp:
            return super()._create_ssl_ctx(sslp)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def _request_authentication(self) -> None:
        # Older clients go on without TLS here, and tell the server who they are.
        if self._needs_tls and not self.server_capabilities & CLIENT.SSL:
            raise pymysql.err.OperationalError(NO_TLS, "the server offers no TLS")
        super()._request_authentication()

    def _process_auth(self, plugin_name: bytes, *more: Any) -> Any:
        if plugin_name == b"mysql_clear_password" and not self._secure:
            raise pymysql.err.OperationalError(
                NO_PLUGIN, "the server asks for the password in clear text, without TLS"
            )
        return super()._process_auth(plugin_name, *more)

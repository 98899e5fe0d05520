"""TLS to a database, as the writer's URL asks for it.

| in the URL | meaning |
|---|---|
| ``tls_ca`` | PEM file of the authorities that the server's certificate must come from; without it those of the system |
| ``tls_cert``, ``tls_key`` | PEM files of our certificate and its key, for servers that ask for one |
| ``tls_check_host`` | ``false``: any host name in the certificate will do, where a server has made its own |

The files are read wherever a connection is made: on the driver and on the executors.
"""  # noqa: E501

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_eoc.errors import ConfigError

TLS_OPTIONS = ("tls_ca", "tls_cert", "tls_key", "tls_check_host")
# The peer may just have been killed: these pass.
_CUT = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLWantReadError)


@dataclass(frozen=True)
class Tls:
    """Whom a connection trusts, and who it says it is."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    check_host: bool = True

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Tls:
        """From the options of a URL; ConfigError for a combination that can't work."""
        if ("tls_cert" in options) != ("tls_key" in options):
            raise ConfigError(
                "tls_cert and tls_key work together; only one is given",
                next_step="give both, the PEM files of the certificate and of its key",
            )
        return cls(
            options.get("tls_ca"),
            options.get("tls_cert"),
            options.get("tls_key"),
            flag("tls_check_host", options.get("tls_check_host", "true")),
        )

    def check_files(self) -> None:
        """ConfigError, with the host's name, for a file that isn't on this machine."""
        for option, path in (("tls_ca", self.ca), ("tls_cert", self.cert), ("tls_key", self.key)):
            if path is not None and not Path(path).is_file():
                raise ConfigError(
                    f"{option}={path} is no file on {socket.gethostname()}",
                    next_step="put it there: driver and executors read it under the same path",
                )

    def context(self) -> ssl.SSLContext:
        """The context; ConfigError for files that can't be used."""
        self.check_files()
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the files of tls_ca, tls_cert and tls_key can't be used: {error}",
                next_step="give PEM files, and the key that belongs to the certificate",
            ) from error
        # The authorities that MySQL makes for itself lack what the strict check wants.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_host
        return context


def flag(name: str, value: str) -> bool:
    """``true`` or ``false``; ConfigError for anything else."""
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"{name}={value!r} is not known", next_step="use true or false")
    return value.lower() == "true"


def tls_refusal(error: BaseException) -> ssl.SSLError | None:
    """What TLS refused for good, somewhere among the causes of ``error``; None if it may pass."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _CUT):
            return cause
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = getattr(seen, "original_exception", None) or seen.__cause__ or seen.__context__


def refusal_text(refused: ssl.SSLError, where: str) -> tuple[str, str]:
    """What happened, and the next step."""
    if isinstance(refused, ssl.SSLCertVerificationError):
        return (
            f"{where} is not trusted: {refused.verify_message}",
            "give the file of its authority as tls_ca, and a host that its certificate names "
            "(tls_check_host=false takes any name)",
        )
    return (
        f"TLS with {where} failed: {refused.reason or refused}",
        "see that the server speaks TLS there, and which client certificates it takes (tls_cert, "
        "tls_key)",
    )

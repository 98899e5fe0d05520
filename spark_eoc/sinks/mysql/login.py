"""What it means when a server lets us not in: what is refused for good, and what to do."""

from __future__ import annotations

from spark_eoc.errors import SinkError
from spark_eoc.sinks.mysql.client import NO_PLUGIN, NO_TLS
from spark_eoc.sinks.tls import refusal_text, tls_refusal

_DENIED, _TLS_ONLY = 1045, 3159
_NEXT_STEPS = {
    NO_TLS: "switch TLS on in the server, or take tls and tls_… out of the URL",
    NO_PLUGIN: "give the account a password of the server's default kind, or use TLS if it is the "
    "password in clear text that was asked for",
    _DENIED: "see user and password; an account with REQUIRE SSL or X509 needs tls=true in the "
    "URL, and for X509 tls_cert and tls_key",
    _TLS_ONLY: "add tls=true to the URL, or tls_ca with the file of the server's authority",
}
#: What PyMySQL raises without a package that a kind of password needs, by the package's name.
_PACKAGES = {
    "cryptography": ("caching_sha2_password or sha256_password without TLS", "pymysql[rsa]"),
    "pynacl": ("ed25519", "pymysql[ed25519]"),
}


def refused_login(error: Exception, where: str) -> SinkError | None:
    """The refusal, or None for an error that may pass or that is none of the login."""
    refused = tls_refusal(error)
    if refused is not None:
        return _refused(*refusal_text(refused, f"the server of {where}"))
    code = error.args[0] if error.args else None
    if code in _NEXT_STEPS:
        what = f"{where} can't be logged in to: error {code}, {error.args[1]}"
        return _refused(what, _NEXT_STEPS[code], code)
    for package, (kind, extra) in _PACKAGES.items():
        if isinstance(error, RuntimeError) and package in str(error):
            return _refused(
                f"{where} can't be logged in to: {kind} needs the Python package {package}",
                f"pip install '{extra}', on the driver and on the executors",
            )
    return None


def _refused(what: str, next_step: str, code: int | None = None) -> SinkError:
    return SinkError(what, applied="nothing by this step", next_step=next_step, error=code)

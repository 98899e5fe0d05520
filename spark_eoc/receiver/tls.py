"""TLS contexts of the receiver."""

from __future__ import annotations

import ssl

from spark_eoc.errors import ConfigError
from spark_eoc.receiver.options import ReceiverOptions


def tls_context(options: ReceiverOptions) -> ssl.SSLContext | None:
    """The context that the options ask for; None without TLS, ConfigError for unusable files.

    With ``listen`` and ``tls_ca``, only peers with a certificate of that authority are let in.
    """
    if not options.tls:
        return None
    listening = options.listen is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listening else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Some builds of Python take a stream that was cut for one that ended, which would complete
    # its last half line.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    try:
        if options.tls_cert is not None:
            context.load_cert_chain(options.tls_cert, options.tls_key)
        if options.tls_ca is not None:
            context.load_verify_locations(options.tls_ca)
        elif not listening:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        files = ", ".join(f"{name} {path!r}" for name, path in options.tls_files.items())
        raise ConfigError(f"the TLS files can't be used ({files}): {error}") from error
    if listening and options.tls_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context

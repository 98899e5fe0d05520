"""Certificates for tests: an authority of one's own that signs for hosts and users."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates, by default for 127.0.0.1; all files lie in ``folder``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        own = self._builder(self._name, self._key, constraint).sign(self._key, hashes.SHA256())
        self.file = str(folder / f"{name}.pem")
        Path(self.file).write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, host: str = "127.0.0.1") -> tuple[str, str]:
        """(certificate file, key file); ``host`` is an address or a name."""
        key = ec.generate_private_key(ec.SECP256R1())
        for_host = x509.SubjectAlternativeName([_host(host)])
        signed = self._builder(_named(name), key, for_host).sign(self._key, hashes.SHA256())
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(files[0]), str(files[1])

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(extension, critical=False)
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

"""Keys of the sites, and the certificates of the server.

A site is known by an EC P-384 key in OpenSSH's format: the engine takes no other, and it signs the site's part in the
secure sum as well. The server is known by a certificate from the federation's own authority, whose certificate each
site gets by a safe way.
"""

from __future__ import annotations

import base64
import binascii
import errno
import functools
import hashlib
import ipaddress
import os
import re
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedhip.federation.agreement.names import shown
from fedhip.federation.errors import SetupError
from fedhip.utils import files

PrivateKey = ec.EllipticCurvePrivateKey

#: The server's certificate is made for these, and for the hosts given.
LOOPBACK = ("127.0.0.1", "localhost")
AUTHORITY_DAYS = 3650
SERVER_DAYS = 397

_ALGORITHM = b"ecdsa-sha2-nistp384"
_LARGEST_KEY = 16_384
_MAKE = "a site makes its key when it accepts the coordinator's parcel: fedhip federation accept PARCEL"
_AGAIN = "get it from the coordinator again"
_SKEW = timedelta(days=1)  # clocks differ
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


# Sites


def make_site_key(path: str | Path) -> bytes:
    """Make a site's key: `path` (private, for its owner alone) and `path`.pub; the public key."""
    path = Path(path)
    public_path = path.with_name(f"{path.name}.pub")
    for place in (path, public_path):
        if place.exists() or place.is_symlink():
            raise SetupError(f"{place} exists; choose another name: a key is never replaced")
    private = ec.generate_private_key(ec.SECP384R1())
    public = public_key_of(private)
    write_private(
        path,
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    try:
        write_private(public_path, public + b"\n")
    except BaseException:
        path.unlink()
        raise
    return public


def read_private_key(path: str | Path) -> PrivateKey:
    """A site's private key, if nobody else can read it and the engine can use it."""
    path = Path(path)
    data = _key_bytes(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise SetupError(f"others can read the private key {path} (mode {mode:04o}); run: chmod 600 {path}")
    if not data.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----"):
        raise SetupError(f"{path} is not a private key in OpenSSH's format; {_MAKE}")
    try:
        key = serialization.load_ssh_private_key(data, password=None)
    except TypeError:
        raise SetupError(
            f"the private key {path} has a passphrase, which a site that runs by itself cannot be asked for; "
            f"take it off with: ssh-keygen -p -f {path}"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise SetupError(f"the private key {path} is damaged; restore it from a copy") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise SetupError(f"the private key {path} is not of the kind EC P-384; {_MAKE}")
    return key


@functools.lru_cache(maxsize=4096)  # a roster's keys, which every message is read with
def require_public_key(text: bytes) -> bytes:
    """`ecdsa-sha2-nistp384 AAAA…` without a comment, if it is such a key."""
    parts = text.split()
    if text.lstrip().startswith(b"-----BEGIN"):
        raise SetupError("this is not a public key, and may be a private one; give the file that ends in .pub")
    if len(parts) < 2 or parts[0] != _ALGORITHM:
        raise SetupError(f"the public key is not of the kind {_ALGORITHM.decode()}; {_MAKE}")
    try:
        key = serialization.load_ssh_public_key(b" ".join(parts[:2]))
    except (ValueError, UnsupportedAlgorithm):
        raise SetupError("the public key is damaged; get it again") from None
    # Written anew, so that one key has one form.
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def public_key_of(private: PrivateKey) -> bytes:
    """The public half, as OpenSSH writes it."""
    return private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def sign(private: PrivateKey, data: bytes) -> bytes:
    """ECDSA with SHA-384."""
    return private.sign(data, ec.ECDSA(hashes.SHA384()))


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    """Whether the owner of this public key signed this."""
    key = serialization.load_ssh_public_key(require_public_key(public))
    assert isinstance(key, ec.EllipticCurvePublicKey)  # noqa: S101  # by require_public_key
    try:
        key.verify(signature, data, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def fingerprint(public: bytes) -> str:
    """`SHA256:…`, as ssh-keygen -l shows it."""
    try:
        blob = base64.b64decode(public.split()[1], validate=True)
    except (IndexError, binascii.Error):
        raise SetupError("this is not a public key; give the contents of a file that ends in .pub") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def site_key_of(folder: str | Path) -> PrivateKey:
    """The private key in a site's folder."""
    return read_private_key(Path(folder, "key"))


# The server


def make_authority(
    directory: str | Path, name: str, *, days: int = AUTHORITY_DAYS, after: x509.Certificate | None = None
) -> None:
    """The federation's certificate authority: ca/ca.crt and ca/ca.key. It begins later than the one it comes after."""
    folder = Path(directory, "ca")
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name("fedhip federation", name)
    start = _now() - _SKEW
    if after is not None:
        start = max(start, after.not_valid_before_utc + timedelta(seconds=1))
    certificate = (
        _builder(subject, subject, key.public_key(), start, start + _SKEW + timedelta(days=_days(days)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(folder / "ca.key", _pem(key))
    write_private(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))


def make_server_certificate(directory: str | Path, hosts: Sequence[str] = (), days: int = SERVER_DAYS) -> None:
    """server/server.pem and server/server.key, for loopback and these hosts, from the federation's authority.

    An older pair is replaced: a certificate that ran out is renewed, and the sites keep what they have.
    """
    directory = Path(directory)
    folder = directory / "server"
    authority = read_authority(directory / "ca" / "ca.crt")
    issuer = _authority_key(directory / "ca" / "ca.key", authority)
    key = ec.generate_private_key(ec.SECP384R1())
    start = _now() - _SKEW
    end = start + _SKEW + timedelta(days=_days(days))
    # No longer than its authority: after that nobody could check it.
    end = min(end, authority.not_valid_after_utc)
    certificate = (
        _builder(_name("fedhip server", "server"), authority.subject, key.public_key(), start, end, issuer)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives(hosts)), critical=False)
        .sign(issuer, hashes.SHA384())
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Written beside both before either takes its place: key and certificate belong together.
    new = [(folder / "server.key", _pem(key)), (folder / "server.pem", certificate.public_bytes(_PEM))]
    written = []
    try:
        for path, data in new:
            written.append(path.with_name(f".{path.name}-{os.urandom(6).hex()}"))
            write_private(written[-1], data)
        for temporary, (path, _) in zip(written, new, strict=True):
            temporary.replace(path)
        files.sync_folder(folder)
    finally:
        for temporary in written:
            temporary.unlink(missing_ok=True)


def renew_server_certificate(directory: str | Path, hosts: Sequence[str] = (), days: int = SERVER_DAYS) -> datetime:
    """A new pair for the hosts of the present one, or for these; the last day it is valid."""
    path = Path(directory) / "server" / "server.pem"
    make_server_certificate(directory, hosts or hosts_of(path), days)
    return _certificate(path).not_valid_after_utc


def valid_until(path: Path) -> datetime:
    """The last moment at which a certificate is valid."""
    return _certificate(path).not_valid_after_utc


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise SetupError(f"{path} is no certificate ({error}); name the hosts with --host") from None


def hosts_of(path: Path) -> list[str]:
    """The hosts that a server's certificate is for, beside loopback."""
    names = _certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return [host for host in found if host not in LOOPBACK]


def read_authority(path: str | Path) -> x509.Certificate:
    """The authority's certificate, if it is one and is valid today."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SetupError(f"there is no file {path}; {_AGAIN}") from None
    except OSError as error:
        raise SetupError(f"{path} cannot be read ({error.strerror}); {_AGAIN}") from None
    return authority_of(data, str(path))


def authority_of(pem: bytes, where: str) -> x509.Certificate:
    """The authority's certificate in these bytes, if it is one and is valid today."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, UnsupportedAlgorithm):
        raise SetupError(f"{where} is not a certificate; {_AGAIN}") from None
    except x509.ExtensionNotFound:
        constraints = None
    if constraints is None or not constraints.ca:
        raise SetupError(f"{where} is not the certificate of an authority; {_AGAIN}")
    require_valid_today(certificate, where)
    return certificate


def require_valid_today(certificate: x509.Certificate, path: Path | str) -> None:
    """Refuse a certificate before its time and after it."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= _now() <= end:
        raise SetupError(
            f"the certificate {path} is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}, and today is {_now():%Y-%m-%d}; "
            "have it renewed, or set the clock right"
        )


def require_host(host: str) -> str:
    """The host's name or address, if a certificate can be made for it."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    # A last label of digits is meant as an address, and clients take it for one.
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise SetupError(
            f"host is {shown(host)}; give a name such as server.example.org or an address such as 192.0.2.7, "
            "without a port"
        )
    return host.lower()


def is_loopback(host: str) -> bool:
    """Whether this host is the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that its owner alone can read; it is there whole, or not at all."""
    try:
        files.write_private(path, data, new=True)
    except FileExistsError:
        raise SetupError(f"{path} exists; choose another place: a key is never replaced") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SetupError(f"{path} cannot be written ({error.strerror}); choose another place") from None


_PEM = serialization.Encoding.PEM


def _key_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_KEY + 1)
    except FileNotFoundError:
        raise SetupError(f"there is no key file {path}; {_MAKE}") from None
    except OSError as error:
        raise SetupError(f"the key file {path} cannot be read ({error.strerror}); {_MAKE}") from None
    if len(data) > _LARGEST_KEY:
        raise SetupError(f"{path} is too large for a key; {_MAKE}")
    return data


def _authority_key(path: Path, authority: x509.Certificate) -> PrivateKey:
    data = _key_bytes(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SetupError(f"{path} is not the key of an authority; restore it from a copy") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != authority.public_key():
        raise SetupError(f"{path} does not belong to ca.crt beside it; restore both from a copy")
    return key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    start: datetime,
    end: datetime,
    signer: PrivateKey | None = None,
) -> x509.CertificateBuilder:
    by = public if signer is None else signer.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by), critical=False)
    )


def _alternatives(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(map(require_host, (*LOOPBACK, *hosts))):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(organization: str, common: str) -> x509.Name:
    parts = ((NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common))
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


def _pem(key: PrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _days(days: object) -> int:
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 7300:
        raise SetupError(f"days is {days!r}; give a whole number from 1 to 7300")
    return days


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)

"""Decides who may read the page: the token of the link, the cookie made of it, and the name of the host. (pure)"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from ipaddress import ip_address

LOCAL_NAMES = frozenset({"localhost"})


def cookie_name(port: int) -> str:
    """Browsers send a host's cookies to all of its ports: each page has a name of its own."""
    return f"longhaul_{port}"


def cookie_of(token: str) -> str:
    """What a browser keeps in place of the token, so that no cookie jar holds a link."""
    return hmac.new(token.encode(), b"longhaul web page", hashlib.sha256).hexdigest()


def is_same(given: str, wanted: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def host_of(header: str) -> str:
    """The name or address in a Host header, without port and brackets, in lower case."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def is_known_host(header: str, names: Collection[str]) -> bool:
    """Whether a browser may address us so. An address is safe: only a name can be rebound to another machine's.

    names: further names, such as this machine's, in lower case.
    """
    host = host_of(header).rstrip(".")
    if host in LOCAL_NAMES or host in names:
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
"""Of every reply. Nothing is loaded from elsewhere, nothing inline runs, and no text can become markup."""

"""Allowed webhook destinations: canonical URLs and a table of public addresses.

The standard library's `is_global` is not used: it includes multicast, NAT64, 6to4 and site-local addresses, and differs
between versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from interlock.errors import Invalid

MAX_URL_LENGTH: Final = 2048
DEFAULT_PORTS: Final = {"https": 443, "http": 80}
PORTS: Final = frozenset({443, 8443})
MAIL_PORTS: Final = {"starttls": 587, "implicit": 465, "none": 25}

_CHARACTERS: Final = re.compile(r"[A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=%]+")
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_ENDS_IN_A_NUMBER: Final = re.compile(r"(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)$")

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOT_PUBLIC_4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier-grade NAT
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # Azure platform services, on a public address
            "169.254.0.0/16",  # link-local, metadata services
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)
# All other addresses (unspecified, loopback, mapped, NAT64, local, multicast) lie outside this block.
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo among them
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: embeds any IPv4 address
            "3fff::/20",  # documentation
        ),
    )
)


class Destination(NamedTuple):
    """A parsed URL; host is a lower-case name or an address in canonical form, without brackets."""

    scheme: str
    host: str
    port: int
    target: str  # path and query, as sent in the request line

    @property
    def address(self) -> Address | None:
        """The host as an IP address, or None if it is a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse(url: str, field: str = "url") -> Destination:
    """Parse a URL, or raise Invalid if two parsers could interpret it differently."""

    def refuse(why: str) -> Invalid:
        return Invalid(f"{field} {why}", pointer=f"/{field}")

    if not 1 <= len(url) <= MAX_URL_LENGTH:
        raise refuse(f"must have 1 to {MAX_URL_LENGTH} characters")
    if not _CHARACTERS.fullmatch(url):
        raise refuse("has a character that a URL cannot have here; percent-encode it")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise refuse("is not a URL") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise refuse("must start with https://")
    if "@" in parts.netloc:
        raise refuse("must not carry a user name or password")
    bracketed = f"[{host}]" if ":" in host else host
    netloc = bracketed if port is None else f"{bracketed}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    rebuilt = f"{parts.scheme}://{netloc}{parts.path}{query}"
    if rebuilt != url or port == 0 or (query and not parts.path):
        raise refuse("is not written in its plain form: scheme, lower-case host, path, query")
    if not _is_host(host):
        raise refuse("must name a host by a plain name or by an address in its usual form")
    return Destination(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme], (parts.path or "/") + query)


def _is_host(host: str) -> bool:
    """Return whether a host is canonical. Resolvers also accept 127.1, 0x7f000001 and others as addresses."""
    if ":" in host or _ENDS_IN_A_NUMBER.search(host):
        try:
            return str(ip_address(host)) == host and "%" not in host
        except ValueError:
            return False
    return _NAME.fullmatch(host) is not None


def is_public(address: str | Address) -> bool:
    """Return whether an address is public according to the tables above; False for text that is not an address."""
    try:
        address = ip_address(address)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in block for block in _NOT_PUBLIC_4)
    if address.scope_id is not None or address not in _GLOBAL_UNICAST:
        return False
    return not any(address in block for block in _NOT_PUBLIC_6)


class Allowance(NamedTuple):
    """Destinations that an operator allows in addition to the public network; port None means any."""

    hosts: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[tuple[Network, int | None], ...] = ()

    @classmethod
    def of(cls, entries: Iterable[str]) -> Allowance:
        """Parse settings: addresses, networks and host names, each with or without :port."""
        hosts, networks = set(), []
        for entry in entries:
            host, port = _entry(entry.strip())
            try:
                networks.append((ip_network(host), port))
            except ValueError:
                if not _is_host(host):
                    raise Invalid(
                        f"webhooks_allow: {entry!r} is not an address, network or host name", pointer="/webhooks_allow"
                    ) from None
                hosts.add((host, port))
        return cls(frozenset(hosts), tuple(networks))

    def fault(self, destination: Destination) -> str | None:
        """Return why a destination is not allowed, judged by the URL alone, or None."""
        host, port, address = destination.host, destination.port, destination.address
        if self._names(destination) or (address is not None and self._reaches(address, port)):
            return None
        if destination.scheme != "https":
            return "must start with https://"
        if port not in PORTS:
            return f"must use port {' or '.join(map(str, sorted(PORTS)))}"
        if address is not None:
            return None if is_public(address) else "names an address that is not public"
        if "." not in host or host.endswith(".localhost"):
            return "refers to a host that is not public"
        return None

    def allows(self, destination: Destination) -> bool:
        """Return whether an operator allowed this destination by name or address."""
        address = destination.address
        return self._names(destination) or (address is not None and self._reaches(address, destination.port))

    def permits(self, destination: Destination, address: str) -> bool:
        """Return whether a connection to this address, which the host resolved to, is allowed."""
        if self._names(destination) or is_public(address):
            return True
        try:
            return self._reaches(ip_address(address), destination.port)
        except ValueError:
            return False

    def _names(self, destination: Destination) -> bool:
        return (destination.host, destination.port) in self.hosts or (destination.host, None) in self.hosts

    def _reaches(self, address: Address, port: int) -> bool:
        return any(address in network and only in (None, port) for network, only in self.networks)


def admitted(url: str, allowance: Allowance, field: str = "url") -> Destination:
    """Return the destination of a URL, or raise Invalid with the field."""
    destination = parse(url, field)
    if why := allowance.fault(destination):
        raise Invalid(f"{field} {why}", pointer=f"/{field}")
    return destination


def admitted_mail(host: str, port: int, allowance: Allowance) -> Destination:
    """Return the destination of a mail server, or raise Invalid with the field."""
    destination = Destination("smtp", host, port, "")
    if not _is_host(host):
        raise Invalid("host must be a plain name or an address in its usual form", pointer="/host")
    if not 0 < port < 65_536 or not (allowance.allows(destination) or port in MAIL_PORTS.values()):
        ports = ", ".join(map(str, sorted(MAIL_PORTS.values())))
        raise Invalid(f"port is {port}: expected one of {ports}", pointer="/port")
    address = destination.address
    local = ("." not in host or host.endswith(".localhost")) if address is None else not is_public(address)
    if local and not allowance.allows(destination):
        raise Invalid("host refers to a host that is not public", pointer="/host")
    return destination


def _entry(text: str) -> tuple[str, int | None]:
    """Split [::1]:80, ::1, 10.0.0.0/8, 127.0.0.1:8000 or hooks.example:8443 into host and port."""
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(\d{1,5}))?", text)
    plain = re.fullmatch(r"([^:]*)(?::(\d{1,5}))?", text)
    if found := bracketed or plain:
        return found[1].lower(), None if found[2] is None else int(found[2])
    return text.lower(), None

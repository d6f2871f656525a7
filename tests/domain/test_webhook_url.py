"""Which URLs are taken, and which addresses are public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.webhook_url import Allowance, Destination, admitted, is_public, parse
from interlock.errors import Invalid

NOWHERE = Allowance()


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://a.example", ("https", "a.example", 443, "/")),
        ("https://a.example/", ("https", "a.example", 443, "/")),
        ("https://a.example:8443/x/y?z=%20&a=b", ("https", "a.example", 8443, "/x/y?z=%20&a=b")),
        ("http://a.example:80/", ("http", "a.example", 80, "/")),
        ("https://xn--bcher-kva.example/", ("https", "xn--bcher-kva.example", 443, "/")),
        ("https://93.184.216.34/", ("https", "93.184.216.34", 443, "/")),
        ("https://[2606:4700::1111]:8443/", ("https", "2606:4700::1111", 8443, "/")),
    ],
)
def test_a_plain_url_is_parsed(url: str, parts: tuple[object, ...]) -> None:
    assert parse(url) == parts


REFUSED = [
    "", "a.example", "//a.example/", "ftp://a.example/", "file:///etc/passwd", "gopher://a.example/", "javascript:alert(1)",
    "HTTPS://a.example/", "https://A.example/", "https:/a.example", "https:///", "https://", "https://:443/",
    "https://user@a.example/", "https://user:pass@a.example/", "https://@a.example/", "https://a.example@b.example/",
    "https://good.example\\@evil.example/", "https://good.example\\", "https://a.example\t/", "https://a.example/\r\nHost: b",
    "https://a.example/\n", " https://a.example/", "https://a.example/ ", "https://a.example/ä", "https://ä.example/",
    "https://a.example/#part", "https://a.example?x=1", "https://a.example/?", "https://a.example:/", "https://a.example:0/",
    "https://a.example:0443/", "https://a.example:65536/", "https://a.example:-1/", "https://a.example:44e1/",
    "https://localhost./", "https://a.example./", "https://.a.example/", "https://a..example/", "https://-a.example/",
    "https://a_b.example/", "https://%61.example/", "https://[::1/", "https://[fe80::1%25eth0]/", "https://[::FFFF:1.2.3.4]/",
    "https://[0:0:0:0:0:0:0:1]/", "https://0x7f000001/", "https://2130706433/", "https://127.1/", "https://0177.0.0.1/",
    "https://0/", "https://①②⑦.0.0.1/", "https://127。0。0。1/", "https://1.2.3.4.5/", "https://1.2.3.256/",
    "https://a.example.0x10/", "https://a/" + "b" * 2048,
]  # fmt: skip


@pytest.mark.parametrize("url", REFUSED)
def test_an_ambiguous_url_is_rejected(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(url, "webhook")
    assert caught.value.pointer == "/webhook"


@given(st.text(max_size=60))
def test_any_text_raises_only_the_documented_error(text: str) -> None:
    for url in (text, f"https://{text}", f"https://a.example{text}"):
        try:
            found = parse(url)
        except Invalid:
            continue
        assert url.startswith(f"{found.scheme}://")
        assert found.host in url


NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.255", "168.63.129.16",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1",
    "198.19.255.255", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1",
    "100::1", "2001::1", "2001:0:7f00:1::", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:808:808::1",
    "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1",
    "4000::1", "", "a.example", "127.1", "1.2.3.4/32",
]  # fmt: skip


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_non_public_addresses_are_recognized(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1", "192.0.1.1",
     "223.255.255.255", "2606:4700:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888", "2620:fe::fe"],
)  # fmt: skip
def test_public_addresses_are_recognized(address: str) -> None:
    assert is_public(address)


@given(st.integers(0, 2**32 - 1))
def test_an_embedded_ipv4_address_is_never_public(number: int) -> None:
    for disguise in (
        IPv6Address(number),
        IPv6Address(0xFFFF << 32 | number),
        IPv6Address(0x64FF9B << 96 | number),
        IPv6Address(0x2002 << 112 | number << 80),
        IPv6Address(0x20010000 << 96 | number),
    ):
        assert not is_public(str(disguise)), (IPv4Address(number), disguise)


@pytest.mark.parametrize(
    "url",
    ["http://a.example/", "https://a.example:22/", "https://a.example:25/", "https://a.example:6379/",
     "https://a.example:5432/", "https://a.example:80/", "https://127.0.0.1/", "https://[::1]/", "https://10.1.2.3/",
     "https://169.254.169.254/latest/meta-data/", "https://[fd00:ec2::254]/", "https://localhost/", "https://intranet/",
     "https://x.localhost/"],
)  # fmt: skip
def test_only_https_to_public_addresses_on_few_ports_is_allowed(url: str) -> None:
    with pytest.raises(Invalid):
        admitted(url, NOWHERE)


def test_public_addresses_are_admitted() -> None:
    for url in ("https://a.example/", "https://a.example:8443/x", "https://8.8.8.8/", "https://[2606:4700::1111]/"):
        assert admitted(url, NOWHERE)


@pytest.mark.parametrize(
    ("entry", "url", "taken"),
    [
        ("127.0.0.1:9000", "http://127.0.0.1:9000/x", True),
        ("127.0.0.1:9000", "http://127.0.0.1:9001/x", False),
        ("127.0.0.1", "http://127.0.0.1:22/", True),
        ("10.0.0.0/8", "https://10.9.8.7/", True),
        ("10.0.0.0/8", "https://11.9.8.7:22/", False),
        ("[::1]:9000", "http://[::1]:9000/", True),
        ("::1", "http://[::1]:9000/", True),
        ("localhost:9000", "http://localhost:9000/", True),
        ("localhost:9000", "http://localhost:9001/", False),
        ("Hooks.Internal", "http://hooks.internal:81/", True),
    ],
)
def test_an_operator_may_allow_more(entry: str, url: str, taken: bool) -> None:
    assert (Allowance.of([entry]).fault(parse(url)) is None) is taken


def test_every_address_is_checked_unless_its_name_is_allowed() -> None:
    there = Destination("https", "hooks.example", 443, "/")
    assert NOWHERE.permits(there, "8.8.8.8")
    assert not NOWHERE.permits(there, "10.0.0.1")
    assert not NOWHERE.permits(there, "nonsense")
    assert Allowance.of(["10.0.0.0/8:443"]).permits(there, "10.0.0.1")
    assert not Allowance.of(["10.0.0.0/8:8443"]).permits(there, "10.0.0.1")
    assert Allowance.of(["hooks.example"]).permits(there, "10.0.0.1")


@pytest.mark.parametrize("entry", ["", "http://a.example", "a b", "10.0.0.0/33", "a.example:99999999", "127.1"])
def test_an_empty_allowance_is_rejected(entry: str) -> None:
    with pytest.raises(Invalid):
        Allowance.of([entry])

"""The rules of artifacts that need no store: which versions are listed, which are deleted, and valid names."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.artifact import (
    Arrangement,
    Artifact,
    Holder,
    NewArtifact,
    arrange,
    content_type,
    link_url,
    served_as,
    span,
)  # fmt: skip
from interlock.domain.job import Rejected
from interlock.errors import Error, Invalid, LeaseLost, Unsatisfiable

HOLDERS = (Holder("job-1", 1, "w"), Holder("job-2", 7, "w"), Holder("job-2", 6, "stale"))
FAULTS: dict[Holder, Error] = {HOLDERS[2]: LeaseLost("job-2", 6)}


@pytest.mark.parametrize(
    "url",
    ["https://example.org", "http://example.org:8080/a?b=c#d", "https://[2001:db8::1]/x", "HTTPS://example.org/%C3%A9", "http://a"],
)  # fmt: skip
def test_a_plain_web_url_is_a_link(url: str) -> None:
    assert link_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "", "example.org", "//example.org", "ftp://example.org", "javascript:alert(1)", "file:///etc/passwd", "data:text/html,x",
        "https://", "https:///path", "http://a b", "https://example.org/\n", " https://example.org", "https://user:pw@example.org",
        "https://example.org\\@evil.example", "https://exa\tmple.org", "https://example.org:99999", "https://example.org:0",
        "https://[::1", "https://b\u00fccher.example", "https://example.org/" + "a" * 2048, 'https://example.org/"onclick="x',
        "JAVASCRIPT:alert(1)", "https://example.org/<script>", "https://\ud800.example", "https://example.org/\x00", "https://@a/",
    ],
)  # fmt: skip
def test_any_other_url_is_not_a_link(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        link_url(url)
    assert caught.value.pointer == "/url"


@pytest.mark.parametrize(
    "value", ["text/plain", "text/html; charset=utf-8", "image/svg+xml", 'a/b;c=d;e="f g"', "application/vnd.x-1.2"]
)
def test_a_media_type_is_kept(value: str) -> None:
    assert content_type(value) == value


@pytest.mark.parametrize(
    "value",
    ["", "text", "text/", "/plain", "text/plain\r\nSet-Cookie: a=b", "text/plain\n", "text /plain", "text/pläin", "text/plain;",
     "text/plain; charset", "a/b;c=\"d\"e\"", "a/" + "b" * 200, "text/plain\x00"],
)  # fmt: skip
def test_text_that_could_break_a_header_is_not_a_media_type(value: str) -> None:
    with pytest.raises(Invalid) as caught:
        content_type(value)
    assert caught.value.pointer == "/content_type"


def test_the_default_media_type_is_plain_bytes() -> None:
    assert content_type(None) == "application/octet-stream"


@pytest.mark.parametrize("value", ["text/plain", "Text/Plain; charset=utf-8", "application/json", "image/png"])
def test_a_harmless_media_type_is_served_unchanged(value: str) -> None:
    assert served_as(value) == value


@pytest.mark.parametrize(
    "value",
    [None, "text/html", "TEXT/HTML; a=b", "image/svg+xml", "application/pdf", "text/xml", "text/javascript", "x/y",
     "application/xhtml+xml", "text/plain+html"],
)  # fmt: skip
def test_any_other_media_type_is_served_as_plain_bytes(value: str | None) -> None:
    assert served_as(value) == "application/octet-stream"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, None), ("bytes=0-", (0, 10)), ("bytes=2-4", (2, 5)), ("bytes=9-9", (9, 10)), ("bytes=5-1000", (5, 10)),
        ("bytes=-3", (7, 10)), ("bytes=-1000", (0, 10)), ("bytes=4-2", None), ("bytes=-", None),
        ("lines=1-2", None), ("bytes=" + "9" * 5000 + "-", None), ("nonsense", None), ("", None), (" bytes=1-2 ", (1, 3)),
        ("bytes=\u0661-\u0662", None),
    ],
)  # fmt: skip
def test_one_byte_range_is_parsed_and_anything_else_means_the_whole_file(
    wanted: str | None, expected: tuple[int, int] | None
) -> None:
    assert span(wanted, 10) == expected


@pytest.mark.parametrize(
    ("size", "wanted"),
    [(10, "bytes=10-"), (10, "bytes=10-20"), (10, "bytes=-0"), (0, "bytes=0-"), (0, "bytes=-5"), (10, "bytes=0-1,3-4"),
     (10, " bytes=" + "0-1," * 500)],
)  # fmt: skip
def test_a_range_after_the_end_and_several_ranges_are_rejected(size: int, wanted: str) -> None:
    with pytest.raises(Unsatisfiable) as caught:
        span(wanted, size)
    assert caught.value.size == size


@given(st.binary(max_size=30), st.text(alphabet="bytes=-0123456789,", max_size=20))
def test_a_range_never_leaves_the_file(content: bytes, wanted: str) -> None:
    try:
        found = span(wanted, len(content))
    except Unsatisfiable:
        return
    if found is not None:
        assert 0 <= found[0] < found[1] <= len(content)


def new(number: int, holder: Holder, name: str, size: int | None) -> NewArtifact:
    """A file, or a link where there is no size; the same name and size is the same content."""
    if size is None:
        return NewArtifact(*holder, f"id-{number}", name, url="https://example.org")
    hash = hashlib.sha256(bytes(size)).digest()
    return NewArtifact(*holder, f"id-{number}", name, size, hash, "text/plain", f"key-{number}")


BATCH = st.lists(
    st.tuples(
        st.sampled_from(HOLDERS), st.sampled_from("abc"), st.none() | st.integers(0, 5), st.sampled_from([True] * 4 + [False])
    ),
    max_size=8,
)  # fmt: skip


def plan(items: list[NewArtifact], **facts: Any) -> Arrangement:
    defaults: dict[str, Any] = {
        "faults": FAULTS, "there": [], "safe": {item.key for item in items}, "used": 0, "quota": None, "now": 5, "whole": False,
    }  # fmt: skip
    return arrange(items, **defaults | facts)


@given(BATCH, BATCH, st.none() | st.integers(0, 20), st.booleans())
def test_every_key_has_one_path_and_its_checksum_is_valid(
    first: list[tuple[Holder, str, int | None, bool]],
    second: list[tuple[Holder, str, int | None, bool]],
    quota: int | None,
    whole: bool,
) -> None:
    before = plan([new(n, *facts[:3]) for n, facts in enumerate(first)]).visible
    items = [new(100 + n, *facts[:3]) for n, facts in enumerate(second)]
    safe = {item.key for item, facts in zip(items, second, strict=True) if facts[3] and item.key is not None}
    there = [old for old in before if (old.job_id, old.name) in {(item.job_id, item.name) for item in items}]
    used = sum(old.size or 0 for old in before)
    done = plan(items, there=there, safe=safe, used=used, quota=quota, whole=whole)

    places = {(old.job_id, old.name): old for old in before} | {(a.job_id, a.name): a for a in done.visible}
    after = list(places.values())
    assert sum(a.size or 0 for a in after) == used + done.growth
    assert quota is None or done.growth <= 0 or used + done.growth <= quota
    # Every key that was there or was written is behind one artifact, or left to be collected, and never both.
    behind = {a.key for a in after if a.key is not None}
    assert behind | set(done.spare) | set(done.replaced) == {old.key for old in before if old.key is not None} | safe
    assert not behind & {*done.spare, *done.replaced}
    assert len({*done.spare, *done.replaced}) == len(done.spare) + len(done.replaced)
    # Nothing reports an artifact that does not exist, unless a later one of the same batch has replaced it.
    assert len(done.answers) == len(items)
    last = {(item.job_id, item.name): i for i, item in enumerate(items) if not isinstance(done.answers[i], Rejected)}
    for place, i in last.items():
        assert done.answers[i] == places[place]
    for item, answer in zip(items, done.answers, strict=True):
        if item.holder in FAULTS:
            assert isinstance(answer, Rejected)
    if whole and any(isinstance(answer, Rejected) for answer in done.answers):
        assert (done.visible, done.growth) == ([], 0)
        assert all(isinstance(answer, Rejected) for answer in done.answers)


def test_a_published_artifact_is_the_file_with_its_time() -> None:
    item = new(1, HOLDERS[0], "a", 3)
    assert plan([item]).answers == [Artifact(*item, 5)]

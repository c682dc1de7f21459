"""The choice of a content coding, the codecs and the entity tags."""

from __future__ import annotations

import gzip
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from hosting.encodings import ENCODINGS, compress, decompress, etag_for, matches, negotiate

ALL = ("gzip", "zstd", "identity")


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (None, "identity"),
        ("", "identity"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip, deflate, br", "gzip"),
        ("deflate, br", "identity"),
        ("GZIP", "gzip"),
        ("x-gzip", "gzip"),
        ("gzip;q=1.0, zstd;q=0.5", "gzip"),
        ("gzip;q=0.5, zstd;q=0.5", "zstd"),
        ("gzip ; Q = 0.2", "gzip"),
        ("gzip;q=0", "identity"),
        ("gzip;q=0.000, zstd;q=0.001", "zstd"),
        ("*", "zstd"),
        ("zstd;q=0, *", "gzip"),
        ("*;q=0.1, gzip;q=0.3", "gzip"),
        ("*;q=0.5, gzip;q=0.3", "zstd"),
        ("identity", "identity"),
        ("identity, gzip;q=0.5", "identity"),
        ("gzip;q=0.5, identity;q=0.5", "gzip"),
        ("identity;q=0, gzip", "gzip"),
        ("identity;q=0", "identity"),
        ("*;q=0", "identity"),
        ("gzip;q=much", "identity"),
        ("gzip;q=-1, zstd;q=", "identity"),
        (",, ;q=1, gzip", "gzip"),
    ],
)
def test_the_encoding_follows_the_request_by_rfc_9110(header: str | None, chosen: str) -> None:
    assert negotiate(header, ALL) == chosen


def test_only_what_is_available_is_chosen() -> None:
    assert negotiate("zstd, gzip", ("gzip",)) == "gzip"
    assert negotiate("zstd, gzip", ()) == "identity"
    assert negotiate("*", ("identity",)) == "identity"


@given(st.text(max_size=60), st.sets(st.sampled_from(ALL)))
def test_no_header_breaks_the_choice(header: str, available: set[str]) -> None:
    assert negotiate(header, available) in {*available, "identity"}


@given(st.binary(max_size=5000), st.sampled_from(ENCODINGS), st.booleans())
def test_what_is_compressed_comes_back_and_is_the_same_each_time(data: bytes, encoding: str, dense: bool) -> None:
    body = compress(memoryview(data), encoding, dense=dense)
    assert body == compress(data, encoding, dense=dense)
    assert decompress(memoryview(body), encoding) == data


def test_other_programs_read_what_is_compressed() -> None:
    data = b"tool data " * 5000
    for dense in (False, True):
        assert gzip.decompress(compress(data, "gzip", dense=dense)) == data
        assert zlib.decompress(compress(data, "gzip", dense=dense), wbits=31) == data
        assert zstandard.decompress(compress(data, "zstd", dense=dense)) == data
    assert compress(data, "identity") == data
    assert len(compress(data, "gzip", dense=True)) < len(compress(data, "gzip"))


def test_a_zstd_stream_without_its_size_is_read() -> None:
    writer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    assert decompress(writer.compress(b"streamed") + writer.flush(), "zstd") == b"streamed"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["empty", "foreign", "cut", "flipped"])
def test_damaged_data_is_told_and_never_returned_in_part(encoding: str, damage: str) -> None:
    whole = compress(bytes(range(256)) * 40, encoding)
    damaged = {
        "empty": b"",
        "foreign": b"<!doctype html>",
        "cut": whole[:-3],
        "flipped": bytes([whole[0] ^ 0xFF]) + whole[1:],
    }[damage]
    with pytest.raises(ValueError, match=f"damaged {encoding} data"):
        decompress(damaged, encoding)


def test_an_unknown_encoding_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown content coding 'br'"):
        compress(b"", "br")
    with pytest.raises(ValueError, match="unknown content coding 'br'"):
        decompress(b"", "br")


def test_each_encoding_has_its_own_strong_tag() -> None:
    assert etag_for("abc") == '"abc"'
    assert etag_for("abc", "zstd") == '"abc-zstd"'
    for unfit in ('a"b', "a b", "ü€"):
        with pytest.raises(ValueError, match="not fit for an entity tag"):
            etag_for(unfit)


@pytest.mark.parametrize(
    ("header", "known"),
    [
        (None, False),
        ("", False),
        ('"abc"', True),
        ('W/"abc"', True),
        ('"x", W/"y,z" , "abc"', True),
        ("*", True),
        (" * ", True),
        ('"abcd"', False),
        ('"ab"c"', False),
        ("abc", False),
        ('"x,abc"', False),
        ('"*"', False),
    ],
)
def test_a_client_that_has_the_answer_is_recognised(header: str | None, known: bool) -> None:
    assert matches(header, '"abc"') is known
    assert matches(header, 'W/"abc"') is known

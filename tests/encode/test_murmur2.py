"""The hash equals Java's, for every length and wherever a key lies in its column."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference

from sparkonce.encode.murmur2 import murmur2

# from the tests of Kafka's own Java client
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def hashes(keys: list[bytes | None], kind: pa.DataType | None = None) -> list[int]:
    return [int(value) for value in murmur2(pa.array(keys, kind or pa.binary()))]


@pytest.mark.parametrize(("key", "expected"), JAVA.items())
def test_known_vectors_alone(key: bytes, expected: int) -> None:
    assert hashes([key]) == [expected & 0xFFFFFFFF]


def test_known_vectors_in_one_column() -> None:
    expected = [value & 0xFFFFFFFF for value in JAVA.values()]
    assert hashes(list(JAVA)) == expected
    assert hashes(list(JAVA), pa.large_binary()) == expected


def test_every_length_of_bytes_with_the_sign_bit() -> None:
    for length in range(40):
        keys = [bytes([0xFF - at] * length) for at in range(5)]
        assert hashes(keys) == [reference(key) & 0xFFFFFFFF for key in keys]


@given(st.lists(st.binary(max_size=70), max_size=60))
def test_ragged_keys(keys: list[bytes]) -> None:
    assert hashes(keys) == [reference(key) & 0xFFFFFFFF for key in keys]


@given(st.lists(st.none() | st.binary(max_size=20), min_size=1), st.data())
def test_nulls_and_slices_move_no_other_key(keys: list[bytes | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(keys)))
    found = murmur2(pa.array(keys, pa.binary()).slice(start))
    for key, value in zip(keys[start:], found, strict=True):
        assert key is None or int(value) == reference(key) & 0xFFFFFFFF


def test_a_key_of_a_megabyte_among_short_ones(rng: random.Random) -> None:
    keys = [rng.randbytes(rng.randrange(30)) for _ in range(1000)]
    keys[500] = rng.randbytes(1_000_003)
    assert hashes(keys) == [reference(key) & 0xFFFFFFFF for key in keys]

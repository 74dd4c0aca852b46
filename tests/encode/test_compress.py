"""Each codec's frame is one that its own reader accepts, and that Kafka's readers do."""

from __future__ import annotations

import random

import lz4.frame
import pytest
from kafka import codec as kafka_codec

from sparkonce.encode import Codec
from sparkonce.encode.compress import compressor
from sparkonce.errors import EncodeError

READERS = {
    Codec.GZIP: kafka_codec.gzip_decode,
    Codec.SNAPPY: kafka_codec.snappy_decode,
    Codec.LZ4: kafka_codec.lz4_decode,
    Codec.ZSTD: kafka_codec.zstd_decode,
}


@pytest.mark.parametrize("codec", READERS)
@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 1_000_000])
@pytest.mark.parametrize("varied", [False, True])
def test_what_is_compressed_is_read_back(
    codec: Codec, size: int, varied: bool, rng: random.Random
) -> None:
    content = rng.randbytes(size) if varied else b"spark" * (size // 5) + b"x" * (size % 5)
    packed = compressor(codec, None)(memoryview(content))
    assert READERS[codec](bytes(packed)) == content


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    packed = compressor(Codec.LZ4, None)(memoryview(b"abc" * 100_000))
    frame = lz4.frame.get_frame_info(bytes(packed))
    assert not frame["block_linked"]
    assert frame["block_size"] == 64 * 1024


def test_a_level_is_used() -> None:
    content = memoryview(b"".join(b"%d," % (at * at) for at in range(20_000)))
    low, high = (len(compressor(Codec.ZSTD, level)(content)) for level in (1, 19))
    assert high < low


@pytest.mark.parametrize(
    ("codec", "level"), [(Codec.ZSTD, 99), (Codec.GZIP, 0), (Codec.LZ4, 13), (Codec.SNAPPY, 1)]
)
def test_a_level_that_the_codec_lacks_is_refused(codec: Codec, level: int) -> None:
    with pytest.raises(EncodeError, match="level"):
        compressor(codec, level)


def test_codecs_by_name() -> None:
    assert [Codec.parse(name) for name in ("none", "gzip", "snappy", "lz4", "ZSTD")] == list(Codec)
    with pytest.raises(EncodeError, match=r"'brotli' is unknown.*none, gzip, snappy, lz4, zstd"):
        Codec.parse("brotli")

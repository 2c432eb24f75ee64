"""Compressed topics of librdkafka and Java's client read the same as uncompressed topics."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import cramjam
import numpy as np
import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewTopic
from kafka.record.memory_records import MemoryRecords

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.dev.jars import fetch_jars
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.reader import read_to
from streaming_pca.service.input.source import build_codec
from streaming_pca.service.kafka.clients import reading_consumer
from streaming_pca.service.kafka.patches import RecordReader
from streaming_pca.service.kafka.record_batches import Record
from streaming_pca.service.kafka.record_blocks import BlockReader, RecordBlock
from tests.kafka.conftest import Make, Name, Patch
from tests.kafka.security import hostile
from tests.kafka.security.codecs import CODECS
from tests.kafka.stream import OCTETS, Stream, check_books, run_together
from tests.service.kafka.test_record_batches import TP
from tests.waiting import LIMIT, wait_for

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")


def produce(stream: Stream, codec: str, values: list[bytes]) -> None:
    """Write records to the only partition, in batches of about a hundred.

    A client stores a batch of one record uncompressed where compression makes it longer, so no batch may
    end before it is full, however slowly this process runs.
    """
    stream.set_configs(stream.settings.stream.input, compression_type="producer")
    how = {"compression.type": codec, "linger.ms": 60_000, "batch.size": 20_000}
    producer = confluent_kafka.Producer({"bootstrap.servers": stream.settings.kafka.bootstrap_servers} | how)
    for i, value in enumerate(values):
        key = b"user %d" % (i % 40)
        producer.produce(stream.settings.stream.input, value, key, partition=0, headers=OCTETS)
    assert producer.flush(LIMIT) == 0


def codecs_of(kafka: KafkaSettings, topic: str) -> set[int]:
    """Return the codecs of a partition's batches, as stored."""
    found: set[int] = set()
    with closing(reading_consumer(kafka, io="records")) as consumer:
        parse = RecordReader.parse

        def noting(self: Any, each: Any) -> Iterator[Any]:
            found.add(each.compression_type)
            return parse(self, each)

        class Noting(RecordReader):
            parse = noting

        consumer._fetcher.PartitionRecords = Noting
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        wait_for("records", lambda: consumer.poll(timeout_ms=100))
    return found


def rows_of(stream: Stream, count: int) -> tuple[bytes, bytes]:
    """Return the rows and lengths of a partition's records, as a worker reads them."""
    settings = stream.settings
    codec = build_codec(settings.stream, None)
    with closing(PartitionReader(settings.kafka, settings.stream, codec, 1, False, lambda: None)) as reader:
        reader.add({0: 0}, {})
        assert read_to(reader, settings.stream.input, {0: count}, lambda: False)
        taken, _ = reader.take([count], 1)
        packed = taken.packed()
        return packed.rows.tobytes(), packed.starts.tobytes()


def test_a_stream_learns_the_same_from_every_codec(make_stream: Make, monkeypatch: Patch) -> None:
    # The tests' own reader is the client's, and its snappy needs another package.
    snappy = SimpleNamespace(decompress=cramjam.snappy.decompress_raw)
    monkeypatch.setattr("kafka.codec.snappy", snappy)
    options = {"n_records": 3000, "n_batches": 3, "clip_radius": 400.0}
    streams = {codec: make_stream(codec, partitions=1, seed=5, options=options) for codec in NAMES}
    x = streams["none"].vectors(3000)
    values = [b"no record" if i % 17 == 0 else np.round(row).tobytes() for i, row in enumerate(x)]
    for number, (codec, stream) in enumerate(streams.items()):
        produce(stream, codec, values)
        assert codecs_of(stream.settings.kafka, stream.settings.stream.input) == {number}
    plain = rows_of(streams["none"], 3000)
    assert len(plain[0]) > 2500 * 20
    assert {codec: rows_of(stream, 3000) for codec, stream in streams.items()} == dict.fromkeys(NAMES, plain)
    run_together(*streams.values(), noise=False)
    learnt = {}
    for codec, stream in streams.items():
        check_books(stream)
        states = [(c.batch, c.state) for c, _ in stream.checkpoints()]
        assert len(states) == 3
        learnt[codec] = (states, stream.results())
    assert learnt == dict.fromkeys(NAMES, learnt["none"])


# -- Java's client -----------------------------------------------------------------

_PROGRAM = """
import java.io.*;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.BufferSupplier;

public class Codecs {
    static String hex(ByteBuffer b) {
        if (b == null) return "-";
        byte[] a = new byte[b.remaining()]; b.duplicate().get(a);
        return "x" + HexFormat.of().formatHex(a);
    }
    static void write(String bootstrap, String codec, String topic) throws Exception {
        Map<String, Object> how = new HashMap<>();
        how.put("bootstrap.servers", bootstrap);
        how.put("compression.type", codec);
        how.put("linger.ms", 60000);
        how.put("batch.size", 100000);
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(how, bytes, bytes)) {
            for (int i = 0; i < 2000; i++) {
                byte[] key = i % 7 == 0 ? null : ("user " + i % 50).getBytes();
                byte[] value = i % 11 == 0 ? null : ("value " + i + " ").repeat(20).getBytes();
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, 0, key, value);
                if (i % 3 > 0) record.headers().add(new RecordHeader("content-type", "x".getBytes()));
                if (i % 3 > 1) record.headers().add(new RecordHeader("none", null));
                producer.send(record);
            }
            producer.flush();
        }
    }
    public static void main(String[] args) throws Exception {
        for (int i = 1; i < args.length; i++) write(args[0], args[i].split("=")[0], args[i].split("=")[1]);
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out), false);
        while (true) {
            int n;
            try { n = in.readInt(); } catch (EOFException e) { break; }
            byte[] bytes = in.readNBytes(n);
            try (BufferSupplier supplier = BufferSupplier.create()) {
                for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
                    Iterator<org.apache.kafka.common.record.Record> each = batch.streamingIterator(supplier);
                    while (each.hasNext()) {
                        org.apache.kafka.common.record.Record r = each.next();
                        out.print(r.offset() + " " + hex(r.key()) + " " + hex(r.value()) + ";");
                    }
                }
                out.println("end");
            } catch (Exception | Error e) { out.println("refused"); }
        }
        out.flush();
    }
}
"""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory, kafka_bootstrap: str) -> Callable[..., str]:
    """Return a function that runs the program with topics to write and batches to read."""
    if shutil.which("javac") is None:
        pytest.skip("no JDK: install openjdk-17-jdk-headless")
    source = tmp_path_factory.mktemp("java") / "Codecs.java"
    source.write_text(_PROGRAM)

    def run(topics: dict[str, str], batches: list[bytes]) -> str:
        stdin = b"".join(struct.pack(">i", len(each)) + each for each in batches)
        arguments = [kafka_bootstrap, *(f"{codec}={topic}" for codec, topic in topics.items())]
        command = ["java", "-cp", f"{fetch_jars()}/*", str(source), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    return run


def test_what_java_writes_is_what_it_wrote(
    java: Callable[..., str], kafka_bootstrap: str, unique_name: Name
) -> None:
    topics = {codec: unique_name(codec) for codec in NAMES}
    with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1) for topic in topics.values()])
    java(topics, [])
    wanted = []
    for i in range(2000):
        key, value = None if i % 7 == 0 else b"user %d" % (i % 50), b"value %d " % i * 20
        headers = [("content-type", b"x"), ("none", None)][: i % 3]
        wanted.append((i, key, None if i % 11 == 0 else value, headers))
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap)
    for number, topic in enumerate(topics.values()):
        assert codecs_of(kafka, topic) == {number}
        for reader in (BlockReader, RecordReader):
            assert read_all(kafka, topic, reader, len(wanted)) == wanted


def read_all(kafka: KafkaSettings, topic: str, reader: type[RecordReader], count: int) -> list[Any]:
    found: list[Record] = []
    with closing(reading_consumer(kafka, io="records", reader=reader)) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)

        def poll() -> bool:
            for each in consumer.poll(timeout_ms=100).get(partition, []):
                found.extend(each.records() if isinstance(each, RecordBlock) else [each])
            return len(found) >= count

        wait_for("all records", poll)
    return [(r.offset, r.key, r.value, list(r.headers)) for r in found]


def frames(data: bytes, more: bytes) -> Iterator[tuple[str, int, bytes, int]]:
    """Yield compressed bytes of 20 or 40 records: case name, codec, bytes and record count."""
    for name, (number, encode) in CODECS.items():
        one, two = encode(data), encode(more)
        yield f"{name} whole", number, one, 20
        yield f"{name} cut", number, one[: len(one) * 2 // 3], 20
        yield f"{name} nothing", number, b"", 20
        if name != "snappy":
            yield f"{name} concatenated", number, one + two, 40
            yield f"{name} of another", number, encode(b"\xff" * 500), 20


def test_frames_are_read_as_far_as_java_reads_them(java: Callable[..., str]) -> None:
    """Records that Java reads are read; records after an error are nulls where Java stops."""
    records = [hostile.record(b"value %d " % i * 9, i, key=b"k%d" % i) for i in range(40)]
    cases = list(frames(b"".join(records[:20]), b"".join(records[20:])))
    batches = [hostile.batch([data], count=count, attributes=number) for _, number, data, count in cases]
    lines = java({}, batches).splitlines()
    assert len(lines) == len(cases)
    whole = 0
    for (name, _, _, count), each, line in zip(cases, batches, lines, strict=True):
        *parts, end = line.split(";")
        reader = RecordReader(0, TP, MemoryRecords(each))
        ours: list[Record] = []
        while reader:
            ours += reader.take(2000)
        theirs = [part.split() for part in parts]
        assert [r.offset for r in ours] == list(range(count))
        known = [[str(r.offset), _hex(r.key), _hex(r.value)] for r in ours[: len(theirs)]]
        assert known == theirs, name
        read = sum(r.value is not None for r in ours)
        # Batches that Java rejects are broken here too; it reads ahead, and may stop some records earlier.
        assert (read == count) == (end == "end"), name
        whole += end == "end"
    assert 8 <= whole < len(cases)


def _hex(data: bytes | None) -> str:
    return "-" if data is None else "x" + data.hex()

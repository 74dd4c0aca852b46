"""A peer: the usual loop with confluent-kafka, idempotent producer, offsets committed behind it."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sparkonce.verify.contract import Job

NAME = "confluent-kafka loop"
GUARANTEES = ("at_least_once",)
SHARES = True


def run(job: Job) -> None:
    producer = Producer(
        {"bootstrap.servers": job.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5}
    )
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap_servers,
            "group.id": job.name,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    topic = job.input_topic
    found = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign(consumer.committed([TopicPartition(topic, each) for each in found], timeout=30))
    ended: set[int | None] = set()
    while len(ended) < len(found):
        messages = consumer.consume(job.per_batch, 0.2)
        for message in messages:
            error = message.error()
            if error is None:
                producer.produce(job.output_topic, message.value(), message.key())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif error.fatal():
                raise KafkaException(error)
        producer.flush()
        if any(message.error() is None for message in messages):
            consumer.commit(asynchronous=False)
    consumer.close()

"""A peer: Quix Streams, from topic to topic. Its package is not among our dependencies."""

from __future__ import annotations

from sparkonce.errors import ConfigError
from sparkonce.verify.contract import Job

NAME = "Quix Streams"
GUARANTEES = ("at_least_once", "exactly_once")

ENDS = False


def run(job: Job) -> None:
    try:
        from quixstreams import Application  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise ConfigError(
            "Quix Streams is not installed: pip install quixstreams, in an environment of its own "
            "(it asks for an older confluent-kafka than ours)"
        ) from error
    app = Application(
        broker_address=job.bootstrap_servers,
        consumer_group=job.name,
        auto_offset_reset="earliest",
        processing_guarantee=job.guarantee.replace("_", "-"),
        commit_every=job.per_batch,
        state_dir=job.folder,
        consumer_extra_config={
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,  # a killed member is missed sooner
        },
        use_changelog_topics=False,
    )
    raw = {"key_deserializer": "bytes", "value_deserializer": "bytes"}
    source = app.topic(job.input_topic, **raw)
    target = app.topic(job.output_topic, key_serializer="bytes", value_serializer="bytes")
    app.dataframe(source).to_topic(target)
    app.run()

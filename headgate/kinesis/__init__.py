"""A consumer of Kinesis streams: the extra ``kinesis``."""

from headgate.kinesis.consumer import KinesisConsumer, KinesisRecord

__all__ = ["KinesisConsumer", "KinesisRecord"]

"""A consumer of Kinesis streams: ``pip install 'headgate[kinesis]'``."""

from headgate.kinesis.consumer import KinesisConsumer, KinesisRecord

__all__ = ["KinesisConsumer", "KinesisRecord"]

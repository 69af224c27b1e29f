"""A consumer of Kinesis streams: ``pip install 'headgate-client[kinesis]'``."""

from headgate.kinesis.consumer import KinesisConsumer, KinesisRecord

__all__ = ["KinesisConsumer", "KinesisRecord"]

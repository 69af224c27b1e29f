"""The client library: Producer, Consumer, ExternalConsumer and Admin."""

"""Bascule: durable streams on NATS subjects, read over the Kafka wire protocol and by PySpark."""

__version__ = "0.1.0"

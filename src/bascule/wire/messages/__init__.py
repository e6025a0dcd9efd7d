"""The supported messages, one module per API. Each class describes all versions of its message.

Fields are in their order on the wire. Source: the message schemas of Apache Kafka 4.3.
"""

"""Settings of streams and nodes under the names that Kafka has for them.

kinds            a setting as clients see it, and Kafka's numbers for types and sources
topic_settings   the settings of a stream: to clients, and back
broker_settings  the configuration of a node: to clients only
"""

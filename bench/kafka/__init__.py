"""Apache Kafka's broker, and clients that read from any server that speaks its protocol."""

"""Protobuf values: one message per value, described at run time by a FileDescriptorSet."""

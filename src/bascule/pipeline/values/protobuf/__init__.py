"""Protobuf: one message a value, described at run time by a FileDescriptorSet."""

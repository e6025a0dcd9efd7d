"""One thread with the sockets of all payloads: frames in, frames and file ranges out."""

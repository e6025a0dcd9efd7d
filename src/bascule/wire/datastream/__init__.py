"""The data streaming protocol: payloads between clients and nodes, and from node to node.

A connection begins on the client listener or the peer listener. The fifth byte of its first frame
tells it from other protocols, because no API key is so large. All numbers are big-endian::

    frame    | size u32 | kind u8 | flags u8 | body |            `size` counts what follows it
    DATA     | size u32 | kind u8 | flags u8 | position u64 | crc u32 | bytes |
    ACK      | size u32 | kind u8 | flags u8 | written u64 | synced u64 |

The bodies of other frames are MessagePack (`messages`). `position` is that of the first byte in the
payload, `crc` the CRC-32C of the bytes of this frame. An ACK is cumulative: every node of the tree
has written the bytes below `written`, and synced those below `synced`.

Who opens a connection sends HELLO and then, for one payload after the other::

    OPEN -> OPENED, DATA ... -> ACK ..., CLOSE -> CLOSED       to send a payload
    FETCH -> FETCHED, then DATA ... from the node, ACK ... to it, CLOSE from it     to get one

FAILED says in any state why the payload at hand ends; the connection ends with it.
"""

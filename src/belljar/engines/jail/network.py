"""Network namespace of a jar: a loopback of its own and nothing else. network_namespaces(7)."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def raise_loopback() -> None:
    """A new namespace has `lo`, but down: programs that talk to themselves need it up. netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))

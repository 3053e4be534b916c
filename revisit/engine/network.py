"""This machine in the network: a free port, the interface that leads to another machine, and when that is gone."""

import fcntl
import os
import re
import socket
import struct
from urllib.parse import urlsplit

import torch.distributed as dist

_NO_ANSWER = re.compile(
    r"time[d-]? ?out|connection (was )?(closed|reset|refused|lost)|broken pipe|remote process|no route|unreachable",
    re.I,
)
_GET_ADDRESS = 0x8915  # Linux's SIOCGIFADDR


def is_lost_contact(error: BaseException) -> bool:
    """Whether an error is how gloo, NCCL or torch's store say that a process does not answer."""
    by_network = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
    return by_network and _NO_ANSWER.search(str(error)) is not None


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def prefer_interface_towards(dist_url: str) -> None:
    """Let gloo and NCCL use the interface that leads to machine 0, unless the environment names one already.

    gloo would take the one that the machine's own name resolves to, on many machines 127.0.0.1, where nobody else is.
    """
    host = urlsplit(dist_url).hostname or os.environ.get("MASTER_ADDR", "")
    name = interface_towards(host) if host else None
    if name and not name.startswith("lo"):  # a machine may know itself as 127.0.1.1, where no other finds it
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def interface_towards(host: str) -> str | None:
    """The name of the interface with the IPv4 address that packets to ``host`` leave from; None if it is not found."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, 9))  # of a datagram socket: nothing is sent
            own = sock.getsockname()[0]
        except OSError:
            return None
        return next((name for _, name in socket.if_nameindex() if _address(sock, name) == own), None)


def _address(sock: socket.socket, interface: str) -> str | None:
    try:
        answer = fcntl.ioctl(sock, _GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
    except OSError:  # it has none
        return None
    return socket.inet_ntoa(answer[20:24])

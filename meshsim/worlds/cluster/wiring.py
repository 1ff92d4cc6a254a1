"""Connections of rank 0 with every other rank, apart from the ranks' own communication.

The ranks meet at the store of the launcher's master address (the agent's, else rank 0 hosts it), learn there
where rank 0 listens, and connect to it. From then on a rank that ends is noticed at once, and results come in
whatever state the process groups are in.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import psutil

from meshsim.errors import CannotRun
from meshsim.torch_private import PrefixStore, Store, TCPStore
from meshsim.worlds.cluster.facts import host_name
from meshsim.worlds.cluster.launch import Launch
from meshsim.worlds.cluster.messages import Beat
from meshsim.worlds.gloo.frames import BlockingChannel, Channel

JOIN_VARIABLE = "MESHSIM_JOIN_TIMEOUT"
LOST_VARIABLE = "MESHSIM_LOST_AFTER"
BEAT_EVERY = 1.0
_TOKEN_BYTES = 32
_RANK_BYTES = 8
_CONNECT = 5.0


def join_timeout() -> float:
    """Seconds for all ranks to meet."""
    return _seconds(JOIN_VARIABLE, 300.0)


def lost_after() -> float:
    """Seconds without a sign of life after which a rank is given up, though its connection stands."""
    return _seconds(LOST_VARIABLE, 30.0)


def _seconds(variable: str, otherwise: float) -> float:
    text = os.environ.get(variable)
    if not text:
        return otherwise
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise CannotRun(f"{variable}={text!r} must be a number of seconds above 0")
    return seconds


def open_store(launch: Launch) -> Store:
    """The job's store. Keys of other jobs and attempts at the same address are out of reach."""
    host, port = launch.master_addr, launch.master_port
    try:
        store = TCPStore(
            host,
            port,
            None,
            launch.rank == 0 and not launch.agent_store,
            timeout=timedelta(seconds=join_timeout()),
            wait_for_workers=False,
        )
    except Exception as error:
        raise CannotRun(
            f"rank {launch.rank} on host {host_name()} can't reach the store at {host}:{port} "
            f"(MASTER_ADDR, MASTER_PORT): {str(error).splitlines()[0]}"
        ) from error
    return PrefixStore(f"meshsim/{launch.job}/{launch.attempt}/", store)


# Rank 0's end


class Peers:
    """All other ranks as rank 0 sees them."""

    def __init__(self, connections: dict[int, socket.socket]) -> None:
        self._channels = {rank: Channel(connection) for rank, connection in connections.items()}
        self._heard = dict.fromkeys(connections, time.monotonic())
        self._beaten = 0.0
        self._selector = selectors.DefaultSelector()
        for rank, channel in self._channels.items():
            self._selector.register(channel, selectors.EVENT_READ, rank)
        self.lost: dict[int, str] = {}
        """Ranks that are gone, each with how that was noticed."""

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def present(self) -> list[int]:
        return [rank for rank in self._channels if rank not in self.lost]

    def watch(self, source: Any) -> None:
        """Let ``poll`` return when this socket can be read, too."""
        self._selector.register(source, selectors.EVENT_READ, None)

    def unwatch(self, source: Any) -> None:
        self._selector.unregister(source)

    def send(self, rank: int, message: object, blob: bytes = b"") -> None:
        if rank not in self.lost:
            self._channels[rank].send(message, blob)

    def broadcast(self, message: object, blob: bytes = b"") -> None:
        for rank in self.present:
            self.send(rank, message, blob)

    def poll(self, until: float) -> Iterator[tuple[int, Any, bytes]]:
        """Wait for something to happen, at most until then; what has arrived."""
        for rank in self.present:
            channel = self._channels[rank]
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.wants_to_write else 0)
            self._selector.modify(channel, events, rank)
        for key, mask in self._selector.select(max(0.0, until - time.monotonic())):
            rank = key.data
            if rank is None or rank in self.lost:
                continue
            channel = self._channels[rank]
            if mask & selectors.EVENT_WRITE:
                channel.flush()
            if mask & selectors.EVENT_READ:
                for message, blob in channel.receive():
                    self._heard[rank] = time.monotonic()
                    if not isinstance(message, Beat):
                        yield rank, message, blob
                if channel.closed:
                    self._lose(rank, "its process is gone")

    def beat(self) -> None:
        """Show that rank 0 is here, and give up ranks that show nothing."""
        now = time.monotonic()
        if now - self._beaten < BEAT_EVERY:
            return
        # After a pause of rank 0 itself, the others get the time to be heard.
        paused = now - self._beaten > 2 * BEAT_EVERY
        self._beaten = now
        self.broadcast(Beat())
        for rank in self.present:
            if paused:
                self._heard[rank] = now
            elif now - self._heard[rank] > lost_after():
                self._lose(rank, f"nothing was heard of it for {lost_after():g} s")

    def flush(self, seconds: float) -> None:
        """Send what is still to be sent."""
        until = time.monotonic() + seconds
        while any(self._channels[rank].wants_to_write for rank in self.present) and time.monotonic() < until:
            for _ in self.poll(min(until, time.monotonic() + 0.05)):
                pass

    def address_of(self, rank: int) -> str:
        """A rank's address, as seen from rank 0."""
        return _plain(self._channels[rank].socket.getpeername()[0])

    def own_address(self, rank: int) -> str:
        """Rank 0's address, as seen from that rank."""
        return _plain(self._channels[rank].socket.getsockname()[0])

    def _lose(self, rank: int, how: str) -> None:
        self.lost[rank] = how
        self._selector.unregister(self._channels[rank])
        self._channels[rank].close()


def _plain(address: str) -> str:
    """An IPv4 address as such, also where a socket for both families shows it as an IPv6 one."""
    return address.removeprefix("::ffff:") if "." in address else address


def receive_ranks(launch: Launch, store: Store) -> Peers:
    """Rank 0: listen, say where in the store, and take in every other rank."""
    token = secrets.token_hex(_TOKEN_BYTES // 2)
    listener = _listener(launch)
    connections: dict[int, socket.socket] = {}
    until = time.monotonic() + join_timeout()
    with listener:
        place = {
            "host": host_name(),
            "addresses": _candidates(launch),
            "port": listener.getsockname()[1],
            "token": token,
        }
        store.set("first", json.dumps(place))
        while len(connections) < launch.world_size - 1:
            listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                missing = sorted(set(range(1, launch.world_size)) - set(connections))
                raise CannotRun(
                    f"{_listed(missing)} did not come within {join_timeout():g} s ({JOIN_VARIABLE}); "
                    f"{launch.world_size - len(missing)} of {launch.world_size} ranks are here"
                ) from None
            rank = _introduced(connection, token, launch.world_size)
            if rank is not None:
                connections[rank] = connection
    return Peers(connections)


def _listed(ranks: Sequence[int]) -> str:
    from meshsim.checker.wording import named_ranks

    return named_ranks(ranks)


def _introduced(connection: socket.socket, token: str, size: int) -> int | None:
    """The rank at the other end; None, and closed, for whoever doesn't know the token."""
    connection.settimeout(_CONNECT)
    try:
        data = _read_exactly(connection, _TOKEN_BYTES + _RANK_BYTES)
    except OSError:
        data = b""
    if hmac.compare_digest(data[:_TOKEN_BYTES], token.encode()):
        rank = int(data[_TOKEN_BYTES:])
        if 0 < rank < size:
            _keep_alive(connection)
            return rank
    connection.close()
    return None


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


def _listener(launch: Launch) -> socket.socket:
    if launch.master_addr in ("127.0.0.1", "localhost"):
        return socket.create_server(("127.0.0.1", 0), backlog=1024)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        except OSError:
            pass  # the kernel knows IPv6 and this host has none
    return socket.create_server(("", 0), backlog=1024)


def _candidates(launch: Launch) -> list[str]:
    """Where rank 0 may be reached, likeliest first."""
    found = [launch.master_addr]
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                found.append(address.address)
    return list(dict.fromkeys(found))


def _keep_alive(connection: socket.socket) -> None:
    """Let the system notice a host that is cut off, also while nothing is said."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


# The other ranks' end


def connect_to_first(launch: Launch, store: Store) -> BlockingChannel:
    """Find rank 0 through the store and connect to it."""
    try:
        place = json.loads(store.get("first"))
    except Exception as error:
        raise CannotRun(
            f"rank 0 did not come to the store at {launch.master_addr}:{launch.master_port}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    addresses = list(place["addresses"])
    if place["host"] == host_name():
        addresses.insert(0, "127.0.0.1")
    failures = []
    for address in addresses:
        try:
            connection = socket.create_connection((address, place["port"]), timeout=_CONNECT)
        except OSError as error:
            failures.append(f"{address}: {error}")
            continue
        connection.sendall(place["token"].encode() + f"{launch.rank:0{_RANK_BYTES}}".encode())
        connection.settimeout(None)
        _keep_alive(connection)
        return BlockingChannel(connection)
    raise CannotRun(
        f"rank {launch.rank} on host {host_name()} can't connect to rank 0 on host {place['host']}, "
        f"port {place['port']}: {'; '.join(failures)}"
    )

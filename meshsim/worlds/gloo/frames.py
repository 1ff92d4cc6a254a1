"""Messages over a socket: a length-prefixed pickle, and with it bytes that are passed on unread."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections import deque
from typing import Any

_LENGTHS = struct.Struct("!QQ")
_CHUNK = 1 << 18

Message = tuple[Any, bytes]


def _head(message: object, blob: bytes) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTHS.pack(len(body), len(blob)) + body


class FrameParser:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTHS.size:
            of_body, of_blob = _LENGTHS.unpack_from(self._buffer)
            end_of_body = _LENGTHS.size + of_body
            end = end_of_body + of_blob
            if len(self._buffer) < end:
                break
            message = pickle.loads(bytes(self._buffer[_LENGTHS.size : end_of_body]))
            messages.append((message, bytes(self._buffer[end_of_body:end])))
            del self._buffer[:end]
        return messages


class BlockingChannel:
    """The worker's end: any thread may send, one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._parser = FrameParser()
        self._arrived: deque[Message] = deque()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: object, blob: bytes = b"") -> None:
        head = _head(message, blob)
        with self._sending:
            self._sock.sendall(head)
            if blob:
                self._sock.sendall(blob)

    def receive(self) -> Message:
        """The next message. EOFError when the other end is gone."""
        while not self._arrived:
            data = self._sock.recv(_CHUNK)
            if not data:
                raise EOFError
            self._arrived.extend(self._parser.feed(data))
        return self._arrived.popleft()

    def has_arrived(self) -> bool:
        """Whether a message can be had without reading the socket."""
        return bool(self._arrived)


class Channel:
    """The parent's end: never blocks, so that one stopped worker can't hold up the others."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._parser = FrameParser()
        self._outbox: deque[memoryview] = deque()
        self.closed = False

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def socket(self) -> socket.socket:
        return self._sock

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outbox)

    def send(self, message: object, blob: bytes = b"") -> None:
        self._outbox.append(memoryview(_head(message, blob)))
        if blob:
            self._outbox.append(memoryview(blob))
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now."""
        while self._outbox and not self.closed:
            try:
                sent = self._sock.send(self._outbox[0])
            except BlockingIOError:
                return
            except OSError:
                # What the other end still had to say is read before the end of file.
                self._outbox.clear()
                return
            if sent == len(self._outbox[0]):
                self._outbox.popleft()
            else:
                self._outbox[0] = self._outbox[0][sent:]

    def receive(self) -> list[Message]:
        """All messages that have arrived; sets ``closed`` at the end of file."""
        messages: list[Message] = []
        while not self.closed:
            try:
                data = self._sock.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            messages.extend(self._parser.feed(data))
        return messages

    def close(self) -> None:
        self.closed = True
        self._outbox.clear()
        self._sock.close()

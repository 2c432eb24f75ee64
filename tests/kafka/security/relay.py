"""Relay between clients and a port of a broker, which can cut all connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from contextlib import suppress


class Relay:
    """Relay of a loopback port; set ``target`` before the first client connects."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.target = 0
        self.accepted = 0
        """Number of connections so far."""
        self.drops: list[bool] = []
        """Flags of the next connections: each true one ends at its first byte."""
        self._pairs: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            with self._lock:
                self.accepted += 1
                self._pairs += [client, broker]
                dropped = bool(self.drops) and self.drops.pop(0)
            if dropped:
                threading.Thread(target=self._drop, args=(client, broker), daemon=True).start()
                continue
            for source, sink in ((client, broker), (broker, client)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _drop(self, *pair: socket.socket) -> None:
        with suppress(OSError):
            pair[0].recv(1)
        _end(pair)

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
        _end((source, sink))

    def hang_up(self, drops: Iterable[bool] = ()) -> None:
        """End all current connections; ``drops`` decides which of the next ones end as well."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self.drops = list(drops)
        _end(pairs)
        for each in pairs:
            each.close()

    def close(self) -> None:
        self._listener.close()
        self.hang_up()


def _end(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)

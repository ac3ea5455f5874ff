# SPDX-License-Identifier: Apache-2.0
#
# Octets to and fro over one TCP connection, each compared with what it has to be.
#
# stream.py serve PORT            echoes
# stream.py send PORT             sends until its input ends, then prints the number of blocks that came back, and
#                                 whether all were right
#
# It sets O_NONBLOCK and waits by epoll, edge-triggered, as servers do.
import array
import json
import select
import socket
import sys
import threading

BLOCK = 512


def block(number):
    return array.array("Q", range(number * BLOCK, (number + 1) * BLOCK)).tobytes()


def serve(port):
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve_one, args=(connection,), daemon=True).start()


def serve_one(connection):
    with connection:
        try:
            echo(connection)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client was killed


# A short read is taken as the end until the next edge, which epoll(7) allows.
def echo(connection):
    connection.setblocking(False)
    waits = select.epoll()
    waits.register(connection, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
    pending, readable, ending, ended = b"", False, False, False
    while not (ended and not pending):
        for _, events in waits.poll():
            readable = readable or bool(events & ~select.EPOLLOUT)
            ending = ending or bool(events & select.EPOLLRDHUP)
        progress = True
        while progress and not (ended and not pending):
            progress = False
            if readable and len(pending) < 1 << 20:
                try:
                    got = connection.recv(40000)
                    ended = not got
                    readable = len(got) == 40000 or ending
                    pending += got
                    progress = True
                except BlockingIOError:
                    readable = False
            if pending:
                try:
                    n = connection.send(pending)
                    pending = pending[n:]
                    progress = True
                except BlockingIOError:
                    pass


def send(port):
    connection = socket.create_connection(("127.0.0.1", port))
    print("%s:%d" % connection.getsockname(), flush=True)
    more = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), more.set()), daemon=True).start()
    threading.Thread(target=produce, args=(connection, more), daemon=True).start()
    blocks, wrong, rest = 0, False, b""
    while got := connection.recv(70000):
        rest += got
        while len(rest) >= 8 * BLOCK:
            wrong = wrong or rest[: 8 * BLOCK] != block(blocks)
            rest = rest[8 * BLOCK :]
            blocks += 1
    print(json.dumps({"sent": sent, "blocks": blocks, "wrong": wrong or rest != b""}), flush=True)


sent = 0


def produce(connection, more):
    global sent
    while not more.is_set():
        connection.sendall(block(sent))
        sent += 1
    connection.shutdown(socket.SHUT_WR)


{"serve": serve, "send": send}[sys.argv[1]](int(sys.argv[2]))

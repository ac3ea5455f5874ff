# SPDX-License-Identifier: Apache-2.0
#
# Sockets for a test that is another program.
#
# sockets.py PATH     serves the Unix socket PATH, and prints a line when it listens
#
# A request is an octet for the call, the number of a socket, a time limit in ms, the length of the data, and the data.
# An answer is an errno or 0, the length of the data, and the data. The requests of one Unix connection are served one
# after the other.
import errno
import itertools
import os
import select
import socket
import struct
import sys
import threading

REQUEST = struct.Struct("<cIII")
ANSWER = struct.Struct("<II")

sockets = {}
numbers = itertools.count(1)


def keep(sock):
    sock.setblocking(False)
    number = next(numbers)
    sockets[number] = sock
    return number


# named returns the number of a connection, and both of its addresses. One that was reset meanwhile has none.
def named(sock):
    try:
        own, peer = sock.getsockname(), sock.getpeername()
    except OSError as e:
        raise ConnectionResetError(errno.ECONNRESET, "reset") if e.errno == errno.ENOTCONN else e
    return "{} {} {} {} {}".format(keep(sock), own[0], own[1], peer[0], peer[1]).encode()


def wait(sock, event, limit):
    waits = select.poll()
    waits.register(sock, event)
    if not waits.poll(limit):
        raise BlockingIOError(errno.EAGAIN, "time limit")


def connect(_, limit, data):
    host, port = data.decode().split()
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.settimeout(limit / 1000)
        sock.connect((host, int(port)))
        return named(sock)
    except BaseException:
        sock.close()
        raise


def listen(_, __, data):
    sock = socket.create_server(("::", int(data)), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return str(keep(sock)).encode()


def accept(number, limit, _):
    wait(sockets[number], select.POLLIN, limit)
    return named(sockets[number].accept()[0])


def receive(number, limit, data):
    sock = sockets[number]
    while True:
        try:
            return sock.recv(int(data))
        except BlockingIOError:
            wait(sock, select.POLLIN, limit)


# send sends as much as there is room for, and returns how much that was.
def send(number, limit, data):
    sock, sent = sockets[number], 0
    while sent < len(data):
        try:
            sent += sock.send(memoryview(data)[sent:])
        except BlockingIOError:
            if sent:
                break
            wait(sock, select.POLLOUT, limit)
    return str(sent).encode()


def end_writing(number, _, __):
    sockets[number].shutdown(socket.SHUT_WR)
    return b""


def reset_at_close(number, _, __):
    sockets[number].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return b""


def close(number, _, __):
    sockets.pop(number).close()
    return b""


CALLS = {b"c": connect, b"l": listen, b"a": accept, b"r": receive, b"s": send, b"f": end_writing, b"z": reset_at_close, b"x": close}


def read(channel, size):
    data = bytearray()
    while len(data) < size:
        got = channel.recv(min(size - len(data), 1 << 20))
        if not got:
            raise EOFError
        data += got
    return bytes(data)


def serve(channel):
    with channel:
        while True:
            try:
                call, number, limit, size = REQUEST.unpack(read(channel, REQUEST.size))
                data = read(channel, size)
            except (EOFError, ConnectionError):
                return
            try:
                code, answer = 0, CALLS[call](number, limit, data)
            except OSError as error:
                code, answer = error.errno or errno.ETIMEDOUT, b""
            except (KeyError, ValueError):  # it was closed meanwhile
                code, answer = errno.EBADF, b""
            try:
                channel.sendall(ANSWER.pack(code, len(answer)) + answer)
            except ConnectionError:
                return


listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(1024)
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

"""What a MiB costs a server that sends it over loopback: written from memory, read past the page cache and written, or
handed to the socket by the kernel (`sendfile`), batch by batch with a head of its own, as fetches of Kafka clients are answered.

usage: sendfile.py DIRECTORY [MIB]

DIRECTORY is on the disk to measure, and gets a file of MIB (512) for the time being. The receiver throws away what comes.
"""

import mmap
import os
import socket
import sys
import time

MIB = 1 << 20
PLACE, COUNT = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 512
BYTES = COUNT * MIB
MEMORY_BYTES = 64 * MIB
# What the node writes in one go, and the part of a batch that it writes anew.
TURN_BYTES, HEAD = 512 << 10, b"h" * 16


def receive(address):
    buffer = bytearray(MIB)
    with socket.create_connection(address) as stream:
        while stream.recv_into(buffer):
            pass
    os._exit(0)


def from_memory(stream, memory, _file):
    for at in range(0, BYTES, TURN_BYTES):
        begin = at % MEMORY_BYTES
        stream.sendall(memory[begin : begin + TURN_BYTES])


def read_and_written(stream, memory, file):
    for at in range(0, BYTES, MIB):
        begin = at % MEMORY_BYTES
        os.preadv(file, [memory[begin : begin + MIB]], at)
        for turn in range(begin, begin + MIB, TURN_BYTES):
            stream.sendall(memory[turn : turn + TURN_BYTES])


def sent_by_the_kernel(batch_bytes):
    def send(stream, _memory, file):
        for at in range(0, BYTES, batch_bytes):
            stream.send(HEAD, socket.MSG_MORE)
            end = at + batch_bytes
            while at < end:
                at += os.sendfile(stream.fileno(), file, at, end - at)

    return send


def measure(name, send, memory, path, flags, is_cached):
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = os.fork()
        if receiver == 0:
            receive(server.getsockname())
        stream, _ = server.accept()
    file = os.open(path, os.O_RDONLY | flags)
    if is_cached:
        for at in range(0, BYTES, MIB):
            os.pread(file, MIB, at)
    else:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    wall, processor = time.monotonic(), time.process_time()
    send(stream, memory, file)
    processor, wall = time.process_time() - processor, time.monotonic() - wall
    stream.close()
    os.close(file)
    os.waitpid(receiver, 0)
    print(f"{name:<58} {processor * 1e3 / COUNT:.2f} ms/MiB {COUNT / wall:7.0f} MiB/s", flush=True)


def main():
    path = os.path.join(PLACE, "sendfile.measured")
    memory_file = os.memfd_create("memory")
    os.truncate(memory_file, MEMORY_BYTES)
    memory = memoryview(mmap.mmap(memory_file, MEMORY_BYTES))
    for at in range(0, MEMORY_BYTES, MIB):
        memory[at : at + MIB] = os.urandom(MIB)
    try:
        with open(path, "wb") as file:
            for at in range(0, BYTES, MIB):
                begin = at % MEMORY_BYTES
                file.write(memory[begin : begin + MIB])
            file.flush()
            os.fsync(file.fileno())
        for _ in range(3):
            measure("written from memory", from_memory, memory, path, 0, True)
            measure("read from disk into memory, and written", read_and_written, memory, path, os.O_DIRECT, False)
            for kib in (16, 64):
                send = sent_by_the_kernel(kib << 10)
                measure(f"sendfile, batches of {kib} KiB, from the page cache", send, memory, path, 0, True)
                measure(f"sendfile, batches of {kib} KiB, from disk", send, memory, path, 0, False)
    finally:
        os.unlink(path)


main()

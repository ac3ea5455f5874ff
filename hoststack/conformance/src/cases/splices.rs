// SPDX-License-Identifier: Apache-2.0

//! splice(2) between connections and pipes: which of both is waited for, and what is left where.

use super::crossings::unread_before_ring;
use super::ends::{count_sigpipes, sigpipes};
use crate::sys::*;
use libc::{c_int, c_uint, SPLICE_F_NONBLOCK};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Returns connections: one on rings, one that may get them, and one that stays on the kernel.
fn connections() -> [Pair; 3] {
    let settled = fresh();
    for fd in [settled.connector, settled.acceptor] {
        set_option(fd, libc::SO_ZEROCOPY, 1);
    }
    [pair(), fresh(), settled]
}

fn splice(from: c_int, to: c_int, count: usize, flags: c_uint) -> String {
    // SAFETY: descriptors without offsets.
    outcome(unsafe { libc::splice(from, null_mut(), to, null_mut(), count, flags) })
}

fn pipe() -> [c_int; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    ends
}

/// Makes a pipe that has so many octets, each in a slot of its own. A pipe has 16 slots.
fn slots(count: usize) -> [c_int; 2] {
    let ends = pipe();
    // Pages that nobody changes: the pipe has them, not copies.
    static OCTETS: [u8; 16] = *b"abcdefghijklmnop";
    for octet in &OCTETS[..count] {
        let part = libc::iovec { iov_base: std::ptr::from_ref(octet).cast_mut().cast(), iov_len: 1 };
        // SAFETY: one octet, which stays as it is.
        assert_eq!(unsafe { libc::vmsplice(ends[1], &part, 1, 0) }, 1);
    }
    ends
}

/// Reads a pipe until it is empty.
fn taken(fd: c_int) -> usize {
    set_nonblocking(fd, true);
    let (mut all, mut buffer) = (0, [0u8; 4096]);
    loop {
        // SAFETY: the buffer has that many octets.
        match unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) } {
            n if n > 0 => all += n as usize,
            _ => break,
        }
    }
    set_nonblocking(fd, false);
    all
}

/// Runs `f` after a while, when this thread sleeps.
fn later(f: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        f();
    })
}

fn is_late(begun: Instant) -> bool {
    begun.elapsed() > Duration::from_millis(80)
}

/// A pipe without O_NONBLOCK whose slots are all taken, though it has 16 octets.
pub fn splice_to_full_pipe() {
    for (p, flags) in connections().into_iter().flat_map(|p| [(p, SPLICE_F_NONBLOCK), (p, 0)]) {
        let [read, write] = slots(16);
        send(p.connector, b"0123456789", 0);
        if flags == 0 {
            set_nonblocking(write, true);
        }
        note("no slot", splice(p.acceptor, write, 100, flags));
        set_nonblocking(write, false);
        note("nothing is lost", recv(p.acceptor, 100, libc::MSG_PEEK));
        let drains = later(move || {
            let mut buffer = [0u8; 16];
            // SAFETY: the buffer has that many octets.
            assert_eq!(unsafe { libc::read(read, buffer.as_mut_ptr().cast(), 16) }, 16);
        });
        let begun = Instant::now();
        note("waits for a slot", splice(p.acceptor, write, 100, 0));
        note("waited", is_late(begun));
        drains.join().unwrap();
        note("then", taken(read));
        [read, write].into_iter().for_each(close);
    }
}

/// A pipe with one slot left takes some of many octets, and never waits for another slot.
pub fn splice_to_last_slot() {
    for p in connections() {
        let [read, write] = slots(15);
        let block = vec![b'x'; 30_000];
        note("send", outcome(send(p.connector, &block, 0)));
        note("has a slot", splice(p.acceptor, write, 30_000, SPLICE_F_NONBLOCK) != "EAGAIN");
        note("has none", splice(p.acceptor, write, 30_000, SPLICE_F_NONBLOCK));
        let mut all = taken(read) - 15;
        while all < 30_000 {
            splice(p.acceptor, write, 30_000, SPLICE_F_NONBLOCK);
            all += taken(read);
        }
        note("all", all);
        [read, write].into_iter().for_each(close);
        p.close();
    }
}

/// O_NONBLOCK of the socket is for the socket, SPLICE_F_NONBLOCK for the pipe.
pub fn splice_waits() {
    for p in connections() {
        let [read, write] = pipe();
        set_option(p.acceptor, libc::SO_RCVTIMEO, libc::timeval { tv_sec: 0, tv_usec: 100_000 });
        for flags in [0, SPLICE_F_NONBLOCK] {
            let begun = Instant::now();
            note("from a blocking socket", splice(p.acceptor, write, 100, flags));
            note("waited", is_late(begun));
        }
        set_nonblocking(p.acceptor, true);
        note("from another one", splice(p.acceptor, write, 100, 0));
        note("of an empty pipe", splice(read, p.connector, 100, SPLICE_F_NONBLOCK));
        set_nonblocking(read, true);
        note("of one with O_NONBLOCK", splice(read, p.connector, 100, 0));
        set_nonblocking(read, false);
        set_nonblocking(p.connector, true);
        let sends = later(move || {
            // SAFETY: octets of this function.
            unsafe { libc::write(write, b"late".as_ptr().cast(), 4) };
        });
        let begun = Instant::now();
        note("of one without", splice(read, p.connector, 100, 0));
        note("waited", is_late(begun));
        sends.join().unwrap();
        set_nonblocking(p.acceptor, false);
        note("recv", recv(p.acceptor, 100, 0));
        close(write);
        note("of one without a writer", splice(read, p.connector, 100, 0));
        close(read);
        p.close();
    }
}

/// What a full connection does not take stays in the pipe, whatever the pipe's own mode.
pub fn splice_to_full_socket() {
    for p in connections() {
        let [read, write] = pipe();
        set_nonblocking(p.connector, true);
        let mut sent = 0;
        let block = vec![b'x'; 10_000];
        while let Ok(n) = usize::try_from(send(p.connector, &block, 0)) {
            sent += n;
        }
        // SAFETY: octets of this function.
        unsafe { libc::write(write, b"at the end".as_ptr().cast(), 10) };
        for flags in [0, SPLICE_F_NONBLOCK] {
            note("no room", splice(read, p.connector, 100, flags));
        }
        note("in the pipe", queued(read));
        set_nonblocking(p.connector, false);
        set_option(p.connector, libc::SO_SNDTIMEO, libc::timeval { tv_sec: 0, tv_usec: 100_000 });
        let begun = Instant::now();
        note("no room in time", splice(read, p.connector, 100, 0));
        note("waited", is_late(begun));
        note("in the pipe", queued(read));
        set_option(p.connector, libc::SO_SNDTIMEO, libc::timeval { tv_sec: 9, tv_usec: 0 });
        let drains = later(move || {
            let mut buffer = vec![0u8; 1 << 16];
            while sent > 0 {
                // SAFETY: the buffer has that many octets.
                sent -=
                    unsafe { libc::recv(p.acceptor, buffer.as_mut_ptr().cast(), buffer.len().min(sent), 0) } as usize;
            }
        });
        note("waits for room", splice(read, p.connector, 100, 0));
        drains.join().unwrap();
        note("the end", recv(p.acceptor, 100, 0));
        [read, write].into_iter().for_each(close);
        p.close();
    }
}

fn queued(fd: c_int) -> c_int {
    let mut n: c_int = -1;
    // SAFETY: FIONREAD stores a number.
    unsafe { libc::ioctl(fd, libc::FIONREAD, &mut n) };
    n
}

/// Pipes without a reader, connections that have ended, and arguments that cannot be.
pub fn splice_ends() {
    for p in connections() {
        count_sigpipes();
        let [read, write] = pipe();
        note("read end", splice(p.acceptor, read, 100, SPLICE_F_NONBLOCK));
        note("write end", splice(write, p.acceptor, 100, SPLICE_F_NONBLOCK));
        note("both", splice(p.acceptor, p.connector, 100, SPLICE_F_NONBLOCK));
        // SAFETY: the name ends with a zero octet.
        let file = unsafe { libc::memfd_create(c"file".as_ptr(), 0) };
        send(p.connector, b"octets", 0);
        note("a file", splice(p.acceptor, file, 100, 0));
        note("from a file", splice(file, p.acceptor, 100, 0));
        note("nothing", splice(p.acceptor, write, 0, 0));
        note("unknown flags", splice(p.acceptor, write, 1, 1 << 8));
        note("no descriptor", splice(p.acceptor, 999, 1, 0));
        let mut offset = 0;
        // SAFETY: an offset of this function.
        unsafe {
            let n = libc::splice(p.acceptor, null_mut(), write, &mut offset, 1, 0);
            note("an offset of the pipe", outcome(n));
            let n = libc::splice(p.acceptor, &mut offset, write, null_mut(), 1, 0);
            note("an offset of the socket", outcome(n));
        }
        note("all the same", splice(p.acceptor, write, 100, 0));
        note("read of the pipe", taken(read));
        close(read);
        note("no reader", splice(p.acceptor, write, 100, SPLICE_F_NONBLOCK));
        note("signals", sigpipes());
        let [read, write] = pipe();
        // SAFETY: octets of this function; shutdown of a descriptor.
        unsafe {
            libc::write(write, b"to nobody".as_ptr().cast(), 9);
            libc::shutdown(p.connector, libc::SHUT_WR);
        }
        note("end", splice(p.acceptor, write, 100, 0));
        for blocking in [false, true] {
            set_nonblocking(p.connector, !blocking);
            note("after shutdown", splice(read, p.connector, 100, 0));
            note("signals", sigpipes());
            note("in the pipe", queued(read));
        }
        [read, write, file].into_iter().for_each(close);
        p.close();
    }
}

/// Pipes with a name, also one that is opened for both.
pub fn splice_named_pipes() {
    let path = std::ffi::CString::new(format!("/tmp/beeline-fifo.{}", std::process::id())).unwrap();
    let p = pair();
    // SAFETY: the path ends with a zero octet.
    let (both, read, write) = unsafe {
        assert_eq!(libc::mkfifo(path.as_ptr(), 0o600), 0);
        let both = libc::open(path.as_ptr(), libc::O_RDWR);
        (both, libc::open(path.as_ptr(), libc::O_RDONLY), libc::open(path.as_ptr(), libc::O_WRONLY))
    };
    // SAFETY: as above.
    unsafe { libc::unlink(path.as_ptr()) };
    for (from, to) in [(read, write), (both, both)] {
        send(p.connector, b"through a pipe", 0);
        note("to the pipe", splice(p.acceptor, to, 100, 0));
        note("from the pipe", splice(from, p.acceptor, 100, 0));
        note("recv", recv(p.connector, 100, 0));
        set_nonblocking(p.acceptor, true);
        note("of nothing", splice(p.acceptor, to, 100, SPLICE_F_NONBLOCK));
        note("of an empty pipe", splice(from, p.acceptor, 100, SPLICE_F_NONBLOCK));
        send(p.connector, &[b'x'; 100], 0);
        for _ in 0..16 {
            // SAFETY: a page of this function, which stays as it is.
            unsafe { libc::write(to, [0u8; 4096].as_ptr().cast(), 4096) };
        }
        note("to a full one", splice(p.acceptor, to, 100, SPLICE_F_NONBLOCK));
        note("its octets", taken(from));
        note("then", splice(p.acceptor, to, 100, SPLICE_F_NONBLOCK));
        note("its octets", taken(from));
        set_nonblocking(p.acceptor, false);
    }
    [both, read, write].into_iter().for_each(close);
    p.close();
}

/// The octets of kernel and ring go through a pipe in order.
pub fn splice_crossing() {
    let (p, [read, write]) = (unread_before_ring(), pipe());
    note("splice", splice(p.connector, write, 100, 0));
    let mut buffer = [0u8; 40];
    // SAFETY: the buffer has that many octets.
    note("read of the pipe", text(unsafe { libc::read(read, buffer.as_mut_ptr().cast(), 40) }, &buffer));
    [read, write].into_iter().for_each(close);
    p.close();
}

/// A proxy that splices from one connection to another by a pipe, without waiting for any of them.
pub fn splice_proxy() {
    const TOTAL: usize = 3 << 20;
    let kinds = connections().into_iter().zip(connections());
    for ((p, q), slots) in kinds.flat_map(|kind| [(kind, 1), (kind, 16)]) {
        let [read, write] = pipe();
        // SAFETY: fcntl of a pipe.
        unsafe { libc::fcntl(write, libc::F_SETPIPE_SZ, slots * 4096) };
        set_nonblocking(p.acceptor, true);
        set_nonblocking(q.connector, true);
        std::thread::scope(|scope| {
            scope.spawn(|| super::bulk::produce(p.connector, TOTAL, 5));
            let seen = scope.spawn(|| super::bulk::consume(q.acceptor, TOTAL, 5));
            let (mut taken, mut given, mut size) = (0, 0, 1);
            while given < TOTAL {
                size = size * 7 % 65_537;
                // SAFETY: descriptors without offsets.
                let n = unsafe { libc::splice(p.acceptor, null_mut(), write, null_mut(), size, SPLICE_F_NONBLOCK) };
                taken += usize::try_from(n).unwrap_or(0);
                if n < 0 && taken == given {
                    poll(p.acceptor, libc::POLLIN, 1000);
                }
                // SAFETY: as above.
                let n = unsafe { libc::splice(read, null_mut(), q.connector, null_mut(), 1 << 16, SPLICE_F_NONBLOCK) };
                given += usize::try_from(n).unwrap_or(0);
                if n < 0 && taken > given {
                    poll(q.connector, libc::POLLOUT, 1000);
                }
            }
            note("octets", seen.join().unwrap());
        });
        [read, write].into_iter().for_each(close);
        for fd in [p.acceptor, q.connector] {
            set_nonblocking(fd, false);
        }
    }
}

/// sendfile(2) to a pipe splices, too.
pub fn sendfile_to_pipe() {
    let (p, [read, write]) = (pair(), pipe());
    send(p.connector, b"octets", 0);
    // SAFETY: descriptors without an offset.
    note("sendfile", outcome(unsafe { libc::sendfile(write, p.acceptor, null_mut(), 100) }));
    note("in the pipe", taken(read));
    set_nonblocking(p.acceptor, true);
    // SAFETY: as above.
    note("of nothing", outcome(unsafe { libc::sendfile(write, p.acceptor, null_mut(), 100) }));
    // SAFETY: as above.
    note("between sockets", outcome(unsafe { libc::sendfile(p.acceptor, p.acceptor, null_mut(), 100) }));
    [read, write].into_iter().for_each(close);
    p.close();
}

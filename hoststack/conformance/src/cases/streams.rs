// SPDX-License-Identifier: Apache-2.0

//! Calls that move octets.

use crate::sys::*;
use libc::{c_int, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, POLLIN, POLLOUT};

pub fn all_calls() {
    let p = pair();
    let (from, to) = (p.connector, p.acceptor);
    // SAFETY: buffers of this function, with their lengths.
    unsafe {
        note("write", outcome(libc::write(from, b"write".as_ptr().cast(), 5)));
        let mut a = [0u8; 3];
        let mut b = [0u8; 9];
        note("readv", outcome(libc::readv(to, parts(&mut [&mut a, &mut b]).as_ptr(), 2)));
        note("parts", format!("{}{}", String::from_utf8_lossy(&a), String::from_utf8_lossy(&b[..2])));
        let (mut x, mut y) = (*b"wri", *b"tev");
        note("writev", outcome(libc::writev(to, parts(&mut [&mut x, &mut [], &mut y]).as_ptr(), 3)));
        let mut buffer = [0u8; 20];
        let n = libc::read(from, buffer.as_mut_ptr().cast(), 20);
        note("read", text(n, &buffer));

        let mut list = parts(&mut [&mut x, &mut y]);
        note("sendmsg", outcome(libc::sendmsg(from, &message(&mut list), 0)));
        let mut list = parts(&mut [&mut a, &mut b]);
        let mut received = message(&mut list);
        let mut address: libc::sockaddr_storage = std::mem::zeroed();
        received.msg_name = std::ptr::from_mut(&mut address).cast();
        received.msg_namelen = 128;
        note("recvmsg", outcome(libc::recvmsg(to, &mut received, 0)));
        note("its header", format!("{} {}", received.msg_namelen, received.msg_flags));

        note("sendto", outcome(libc::sendto(from, b"to".as_ptr().cast(), 2, 0, std::ptr::null(), 0)));
        let mut length = 128;
        let place = std::ptr::from_mut(&mut address).cast();
        let n = libc::recvfrom(to, buffer.as_mut_ptr().cast(), 20, 0, place, &mut length);
        note("recvfrom", format!("{} with an address of {length}", text(n, &buffer)));
        note("readv of too many", outcome(libc::readv(to, list.as_ptr(), 5000)));
    }
    p.close();
}

/// System calls by their numbers. The number of a descriptor that was closed so is another one's afterwards.
pub fn by_number() {
    let p = pair();
    let (from, to) = (p.connector, p.acceptor);
    let e = epoll();
    let mut buffer = [0u8; 20];
    let nothing = std::ptr::null::<u8>();
    // SAFETY: buffers of this function, with their lengths.
    unsafe {
        note("write", outcome(libc::syscall(libc::SYS_write, from, b"write".as_ptr(), 5) as isize));
        note("read", text(libc::syscall(libc::SYS_read, to, buffer.as_mut_ptr(), 20) as isize, &buffer));
        let n = libc::syscall(libc::SYS_sendto, from, b"sendto".as_ptr(), 6, 0, nothing, 0);
        note("sendto", outcome(n as isize));
        let n = libc::syscall(libc::SYS_recvfrom, to, buffer.as_mut_ptr(), 20, libc::MSG_PEEK, nothing, nothing);
        note("recvfrom", text(n as isize, &buffer));
        let mut list = parts(&mut [&mut buffer]);
        let n = libc::syscall(libc::SYS_recvmsg, to, std::ptr::from_mut(&mut message(&mut list)), 0);
        note("recvmsg", text(n as isize, &buffer));

        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        let n = libc::syscall(libc::SYS_epoll_ctl, e, libc::EPOLL_CTL_ADD, to, std::ptr::from_mut(&mut event));
        note("epoll_ctl", outcome(n as isize));
        let copy = libc::syscall(libc::SYS_dup, from) as i32;
        note("writev", outcome(libc::syscall(libc::SYS_writev, copy, list.as_ptr(), 1) as isize));
        let n = libc::syscall(libc::SYS_epoll_pwait, e, std::ptr::from_mut(&mut event), 1, 5000, nothing, 8);
        note("epoll_pwait", outcome(n as isize));
        let mut one = libc::pollfd { fd: to, events: libc::POLLIN, revents: 0 };
        let n = libc::syscall(libc::SYS_ppoll, std::ptr::from_mut(&mut one), 1, nothing, nothing, 8);
        note("ppoll", outcome(n as isize));
        note("close", outcome(libc::syscall(libc::SYS_close, copy) as isize));
        note("close of all", outcome(libc::syscall(libc::SYS_close, from) as isize));
        note("same number", libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY) == from);
        note("another file", libc::read(from, buffer.as_mut_ptr().cast(), 1));
        note("no such call", outcome(libc::syscall(9999) as isize));
    }
    note("recv", recv(to, 20, 0).len());
    note("recv at the end", recv(to, 20, 0));
    p.close();
    close(e);
}

extern "C" {
    fn dprintf(fd: libc::c_int, format: *const libc::c_char, ...) -> libc::c_int;
    fn __dprintf_chk(fd: libc::c_int, flag: libc::c_int, format: *const libc::c_char, ...) -> libc::c_int;
}

/// What the C library formats and writes, with arguments of both kinds in registers and on the stack.
pub fn printed() {
    let p = pair();
    let (fd, flag, text) = (p.connector, 1, c"text".as_ptr());
    let format = c"%d %s %.1f %d %d %d %d %.1f %.1f %.1f %.1f %.1f %.1f %.1f %.1f %d".as_ptr();
    // SAFETY: as many arguments of each type as the format names.
    unsafe {
        note("dprintf", dprintf(fd, c"%s, %.2f, %d".as_ptr(), text, 2.5, 7));
        note("octets", recv(p.acceptor, 100, 0));
        note("without numbers", dprintf(fd, c"plain".as_ptr()));
        note("octets", recv(p.acceptor, 100, 0));
        let n = dprintf(fd, format, 1, text, 2.5, 3, 4, 5, 6, 7.5, 8.5, 9.5, 1.5, 2.5, 3.5, 4.5, 5.5, 16);
        note("with many", n);
        note("octets", octets_of(&p));
        let n = __dprintf_chk(fd, flag, format, 1, text, 2.5, 3, 4, 5, 6, 7.5, 8.5, 9.5, 1.5, 2.5, 3.5, 4.5, 5.5, 16);
        note("checked", n);
        note("octets", octets_of(&p));
        libc::shutdown(fd, libc::SHUT_WR);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        note("after the end", outcome(dprintf(fd, c"%s".as_ptr(), text) as isize));
    }
    p.close();
}

/// Returns all that have arrived, in pieces that can be shown whole.
fn octets_of(p: &crate::sys::Pair) -> String {
    let pieces = [recv(p.acceptor, 36, 0), recv(p.acceptor, 36, libc::MSG_DONTWAIT)];
    pieces.join("|")
}

pub fn flags() {
    let p = pair();
    note("recv of nothing", recv(p.acceptor, 10, MSG_DONTWAIT));
    send(p.connector, b"abcdef", 0);
    note("peek", recv(p.acceptor, 3, MSG_PEEK));
    note("peek again", recv(p.acceptor, 10, MSG_PEEK));
    note("recv", recv(p.acceptor, 2, 0));
    // SAFETY: MSG_TRUNC of TCP stores nothing.
    note("trunc", outcome(unsafe { libc::recv(p.acceptor, std::ptr::null_mut(), 3, MSG_TRUNC) }));
    note("the rest", recv(p.acceptor, 10, 0));
    let child = in_child(|| {
        for part in [&b"12"[..], b"345", b"6789"] {
            send(p.connector, part, 0);
            std::thread::sleep(std::time::Duration::from_millis(20)); // the other process finds less than all
        }
    });
    note("waitall", recv(p.acceptor, 9, MSG_WAITALL));
    end_of(child);
    send(p.connector, b"xy", 0);
    note("waitall and dontwait", recv(p.acceptor, 5, MSG_WAITALL | MSG_DONTWAIT));
    note("send of nothing", outcome(send(p.connector, b"", 0)));
    p.close();
}

/// A full connection, whatever its size, is not writable, and becomes so when it is drained.
pub fn empty_and_full() {
    let p = pair();
    set_nonblocking(p.connector, true);
    set_nonblocking(p.acceptor, true);
    note("recv of nothing", recv(p.acceptor, 10, 0));
    note("poll of nothing", poll(p.acceptor, POLLIN | POLLOUT, 0));
    let block = vec![b'z'; 10_000];
    let mut sent = 0;
    let last = loop {
        match send(p.connector, &block, 0) {
            -1 => break name(errno()),
            n => sent += n as usize,
        }
    };
    note("send when full", last);
    note("poll when full", poll(p.connector, POLLOUT, 0));
    note("poll of the other end", poll(p.acceptor, POLLIN, 0));
    let mut buffer = vec![0u8; 70_000];
    let mut received = 0;
    while received < sent {
        // SAFETY: the buffer has that many octets.
        let n = unsafe { libc::recv(p.acceptor, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        match n {
            -1 => drop(poll(p.acceptor, POLLIN, 1000)),
            n => {
                assert!(buffer[..n as usize].iter().all(|&octet| octet == b'z'));
                received += n as usize;
            }
        }
    }
    note("all received", received == sent);
    note("poll when drained", poll(p.connector, POLLOUT, 1000));
    note("recv when drained", recv(p.acceptor, 10, 0));
    p.close();
}

pub fn message_lists() {
    let p = pair();
    let (mut a, mut b) = (*b"first", *b"second");
    let (mut x, mut y) = (parts(&mut [&mut a]), parts(&mut [&mut b]));
    // SAFETY: buffers of this function, with their lengths.
    unsafe {
        let mut list: [libc::mmsghdr; 2] = std::mem::zeroed();
        (list[0].msg_hdr, list[1].msg_hdr) = (message(&mut x), message(&mut y));
        note("sendmmsg", outcome(libc::sendmmsg(p.connector, list.as_mut_ptr(), 2, 0) as isize));
        note("lengths", format!("{} {}", list[0].msg_len, list[1].msg_len));
        let n = libc::recvmmsg(p.acceptor, list.as_mut_ptr(), 2, MSG_DONTWAIT, std::ptr::null_mut());
        note("recvmmsg", outcome(n as isize));
        note("lengths", format!("{} {}", list[0].msg_len, list[1].msg_len));
    }
    p.close();
}

/// recvmmsg(2) waits for each message, or for the first one alone.
pub fn message_lists_that_wait() {
    let p = pair();
    let mut octets = [[0u8; 4]; 3];
    let mut parts: Vec<_> = octets.iter_mut().map(|octets| parts(&mut [octets])).collect();
    // SAFETY: zero is a valid list.
    let mut list: [libc::mmsghdr; 3] = unsafe { std::mem::zeroed() };
    list.iter_mut().zip(&mut parts).for_each(|(one, parts)| one.msg_hdr = message(parts));
    let mut receive = |what: &str, flags, timeout: Option<(i64, i64)>| {
        let mut timeout = timeout.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
        let place = timeout.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: a list of three messages, whose buffers live as long as this function.
        let n = outcome(unsafe { libc::recvmmsg(p.acceptor, list.as_mut_ptr(), 3, flags, place) } as isize);
        let lengths: Vec<_> = list.iter_mut().map(|one| std::mem::take(&mut one.msg_len)).collect();
        note(what, format!("{n}, of {lengths:?}, left {:?}", timeout.map(|left| left.tv_sec)));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for text in [b"aaaa", b"bbbb", b"cccc"] {
                std::thread::sleep(std::time::Duration::from_millis(20));
                send(p.connector, text, 0);
            }
        });
        receive("each", 0, None);
    });
    send(p.connector, b"ddddee", 0);
    receive("the first", libc::MSG_WAITFORONE, Some((5, 0)));
    send(p.connector, b"ffffgg", 0);
    receive("until the limit", 0, Some((0, 1)));
    receive("what was left", MSG_DONTWAIT, None);
    receive("an impossible limit", 0, Some((0, -1)));
    close(p.connector);
    receive("the end", 0, None);
    close(p.acceptor);
}

/// More buffers than the kernel takes are refused as a whole.
pub fn too_many_buffers() {
    let p = pair();
    let mut octet = [b'x'];
    for count in [1024, 1025] {
        let mut list = vec![libc::iovec { iov_base: octet.as_mut_ptr().cast(), iov_len: 1 }; count];
        // SAFETY: buffers of this function, with their lengths.
        unsafe {
            note("sendmsg", outcome(libc::sendmsg(p.connector, &message(&mut list), 0)));
            note("recvmsg", outcome(libc::recvmsg(p.acceptor, &mut message(&mut list), MSG_WAITALL)));
        }
    }
    p.close();
}

/// What follows a message that was sent in part is not sent: it would come before the rest of that.
pub fn message_sent_in_part() {
    const TIMES: usize = 400;
    let p = pair();
    set_nonblocking(p.connector, true);
    let reader = std::thread::spawn(move || while !recv(p.acceptor, 30_000, 0).starts_with("0 ") {});
    let (mut a, mut b) = (vec![b'a'; 200_000], *b"bbbb");
    let (mut x, mut y) = (parts(&mut [&mut a]), parts(&mut [&mut b]));
    // SAFETY: zero is a valid list.
    let mut list: [libc::mmsghdr; 2] = unsafe { std::mem::zeroed() };
    (list[0].msg_hdr, list[1].msg_hdr) = (message(&mut x), message(&mut y));
    let mut right = true;
    for _ in 0..TIMES {
        // SAFETY: a list of two messages, whose buffers live as long as this function.
        let n = unsafe { libc::sendmmsg(p.connector, list.as_mut_ptr(), 2, 0) };
        right &= n < 2 || list[0].msg_len == 200_000;
        poll(p.connector, POLLOUT, 1000);
    }
    note("in order", right);
    close(p.connector);
    reader.join().unwrap();
    close(p.acceptor);
}

pub fn files_and_pipes() {
    let p = pair();
    // SAFETY: descriptors and buffers of this function.
    unsafe {
        let file = libc::memfd_create(c"file".as_ptr(), 0);
        libc::write(file, b"0123456789".as_ptr().cast(), 10);
        let mut offset = 3;
        note("sendfile with offset", outcome(libc::sendfile(p.connector, file, &mut offset, 4)));
        note("offset", offset);
        libc::lseek(file, 8, libc::SEEK_SET);
        note("sendfile to its end", outcome(libc::sendfile(p.connector, file, std::ptr::null_mut(), 100)));
        note("position", libc::lseek(file, 0, libc::SEEK_CUR));
        note("received", recv(p.acceptor, 20, 0));
        let folder = libc::open(c"/".as_ptr(), libc::O_RDONLY);
        note("sendfile of a folder", outcome(libc::sendfile(p.connector, folder, std::ptr::null_mut(), 100)));

        let mut pipe: [c_int; 2] = [0; 2];
        libc::pipe(pipe.as_mut_ptr());
        libc::write(pipe[1], b"through a pipe".as_ptr().cast(), 14);
        note("sendfile of a pipe", outcome(libc::sendfile(p.connector, pipe[0], std::ptr::null_mut(), 100)));
        note("with offset", outcome(libc::sendfile(p.connector, pipe[0], &mut 0, 100)));
        let none = std::ptr::null_mut();
        note("splice in", outcome(libc::splice(pipe[0], none, p.connector, none, 100, 0)));
        note("splice out", outcome(libc::splice(p.acceptor, none, pipe[1], none, 100, 0)));
        let mut buffer = [0u8; 20];
        let n = libc::read(pipe[0], buffer.as_mut_ptr().cast(), 20);
        note("read of the pipe", text(n, &buffer));
        let nonblock = libc::SPLICE_F_NONBLOCK;
        set_nonblocking(p.acceptor, true);
        note("splice of nothing", outcome(libc::splice(p.acceptor, none, pipe[1], none, 100, nonblock)));
        close(file);
    }
    p.close();
}

pub fn queue_lengths() {
    let p = pair();
    let count = |fd: c_int, request: libc::c_ulong| {
        let mut n: c_int = -1;
        // SAFETY: both requests store a number.
        let result = unsafe { libc::ioctl(fd, request, std::ptr::from_mut(&mut n)) };
        format!("{result} {n}")
    };
    note("FIONREAD of nothing", count(p.acceptor, libc::FIONREAD));
    send(p.connector, b"seven..", 0);
    note("FIONREAD", count(p.acceptor, libc::FIONREAD));
    recv(p.acceptor, 10, 0);
    // The kernel counts what is not acknowledged yet, which depends on time.
    note("TIOCOUTQ", count(p.connector, libc::TIOCOUTQ).starts_with('0'));
    note("SO_ERROR", socket_error(p.connector));
    let mut info = [0u8; 104];
    let mut length = 104;
    // SAFETY: the buffer has that many octets.
    let result = unsafe {
        libc::getsockopt(p.connector, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut length)
    };
    note("state of TCP_INFO", format!("{result} {}", info[0]));
    p.close();
}

/// Addresses that no program has: EFAULT, and nothing is sent or received.
pub fn impossible_addresses() {
    let p = pair();
    let at = |address: usize| address as *mut libc::c_void;
    let part = |address, length| libc::iovec { iov_base: at(address), iov_len: length };
    let mut octets = *b"octets";
    let good = part(octets.as_mut_ptr() as usize, octets.len());
    let missing: *mut libc::iovec = std::ptr::null_mut();
    // SAFETY: the kernel refuses these addresses.
    unsafe {
        for address in [0, 8, usize::MAX - 100] {
            note("send", outcome(libc::send(p.connector, at(address), 5, 0)));
            note("writev", outcome(libc::writev(p.connector, [good, part(address, 5)].as_ptr(), 2)));
        }
        note("writev without a list", outcome(libc::writev(p.connector, missing, 1)));
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iovlen = 1;
        note("sendmsg without a list", outcome(libc::sendmsg(p.connector, &message, 0)));
        note("sendmmsg without messages", outcome(libc::sendmmsg(p.connector, std::ptr::null_mut(), 1, 0) as isize));
        note("nothing was sent", recv(p.acceptor, 9, libc::MSG_DONTWAIT));
        note("send", send(p.connector, b"abc", 0));
        for address in [0, 8, usize::MAX - 100] {
            note("recv", outcome(libc::recv(p.acceptor, at(address), 5, 0)));
            note("read", outcome(libc::read(p.acceptor, at(address), 5)));
        }
        note("readv without a list", outcome(libc::readv(p.acceptor, missing, 1)));
        note("recvmsg without a list", outcome(libc::recvmsg(p.acceptor, &mut message, 0)));
        let nowhere = std::ptr::null_mut();
        note("recvmmsg", outcome(libc::recvmmsg(p.acceptor, nowhere, 1, 0, std::ptr::null_mut()) as isize));
        note("poll", outcome(libc::poll(std::ptr::null_mut(), 1, 0) as isize));
        let e = epoll();
        let event = at(8).cast();
        note("epoll_ctl", outcome(libc::epoll_ctl(e, libc::EPOLL_CTL_ADD, p.acceptor, event) as isize));
        close(e);
    }
    note("nothing was received", recv(p.acceptor, 9, 0));
    p.close();
}

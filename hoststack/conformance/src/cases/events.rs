// SPDX-License-Identifier: Apache-2.0

//! epoll, poll and select.

use crate::sys::*;
use libc::{c_int, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, POLLIN, POLLOUT};
use std::time::Duration;

/// A time that is long enough for what happens, in milliseconds; what must not happen is asked for without waiting.
pub const SOON: c_int = 5000;

pub fn level() {
    let p = pair();
    let e = epoll();
    add(e, p.acceptor, EPOLLIN, 7);
    note("nothing", wait(e, 8, 0));
    send(p.connector, b"abc", 0);
    note("readable", wait(e, 8, SOON));
    note("still readable", wait(e, 8, 0));
    recv(p.acceptor, 2, 0);
    note("rest", wait(e, 8, 0));
    recv(p.acceptor, 2, 0);
    note("drained", wait(e, 8, 0));
    send(p.connector, b"d", 0);
    note("readable again", wait(e, 1, SOON));
    recv(p.acceptor, 9, 0);
    close(p.connector);
    note("end", wait(e, 8, SOON));
    note("still the end", wait(e, 8, 0));
    note("recv", recv(p.acceptor, 9, 0));
    close(p.acceptor);
    note("closed", wait(e, 8, 0));
    close(e);
}

pub fn edge() {
    let p = pair();
    let e = epoll();
    add(e, p.acceptor, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1);
    note("first", wait(e, 8, 0));
    note("no edge", wait(e, 8, 0));
    send(p.connector, b"abc", 0);
    note("edge", wait(e, 8, SOON));
    note("no edge, though readable", wait(e, 8, 0));
    recv(p.acceptor, 1, 0);
    note("no edge, though the rest is readable", wait(e, 8, 0));
    send(p.connector, b"d", 0);
    note("edge while readable", wait(e, 8, SOON));
    note("all", recv(p.acceptor, 9, 0));
    note("drained", wait(e, 8, 0));
    // SAFETY: shutdown of a descriptor.
    unsafe { libc::shutdown(p.connector, libc::SHUT_WR) };
    note("end", wait(e, 8, SOON));
    note("no edge after the end", wait(e, 8, 0));
    p.close();
    close(e);
}

pub fn oneshot() {
    let p = pair();
    let e = epoll();
    add(e, p.acceptor, EPOLLIN | EPOLLONESHOT, 1);
    send(p.connector, b"abc", 0);
    note("once", wait(e, 8, SOON));
    note("disabled", wait(e, 8, 0));
    send(p.connector, b"def", 0);
    note("still disabled", wait(e, 8, 0));
    note("enable", control(e, EPOLL_CTL_MOD, p.acceptor, EPOLLIN | EPOLLONESHOT, 2));
    note("once more", wait(e, 8, SOON));
    recv(p.acceptor, 9, 0);
    note("enable", control(e, EPOLL_CTL_MOD, p.acceptor, EPOLLIN | EPOLLONESHOT, 3));
    note("nothing", wait(e, 8, 0));
    close(p.connector);
    note("end", wait(e, 8, SOON));
    note("disabled", wait(e, 8, 0));
    close(p.acceptor);
    close(e);
}

pub fn exclusive() {
    let p = pair();
    let e = epoll();
    add(e, p.acceptor, EPOLLIN | EPOLLEXCLUSIVE, 1);
    note("modify", control(e, EPOLL_CTL_MOD, p.acceptor, EPOLLIN, 1));
    send(p.connector, b"abc", 0);
    note("readable", wait(e, 8, SOON));
    recv(p.acceptor, 9, 0);
    note("drained", wait(e, 8, 0));
    p.close();
    close(e);
}

/// EPOLLEXCLUSIVE with EPOLLOUT: the kernel takes no EPOLLRDHUP beside it.
pub fn exclusive_for_room() {
    for (what, begin) in [("on rings", pair as fn() -> Pair), ("before", fresh)] {
        for events in [EPOLLIN | EPOLLOUT, EPOLLOUT] {
            let (p, e) = (begin(), epoll());
            note(what, control(e, EPOLL_CTL_ADD, p.acceptor, events | EPOLLEXCLUSIVE, 1));
            note("writable", wait(e, 8, SOON));
            warm_up(p);
            note("still writable", wait(e, 8, SOON));
            send(p.connector, b"abc", 0);
            note("readable", wait(e, 8, SOON));
            recv(p.acceptor, 9, 0);
            note("drained", wait(e, 8, SOON));
            close(p.connector);
            note("end", wait(e, 8, SOON));
            close(p.acceptor);
            close(e);
        }
    }
}

/// EPOLLONESHOT without events: the end of the peer's side is not reported, and what is reported in any case is later.
pub fn oneshot_of_nothing() {
    let (p, e) = (pair(), epoll());
    add(e, p.acceptor, EPOLLONESHOT, 1);
    // SAFETY: shutdown of descriptors.
    unsafe { libc::shutdown(p.connector, libc::SHUT_WR) };
    note("the end of its side", wait(e, 8, 50));
    // SAFETY: as above.
    unsafe { libc::shutdown(p.acceptor, libc::SHUT_WR) };
    note("both ends", wait(e, 8, SOON));
    note("once", wait(e, 8, 0));
    p.close();
    close(e);
}

pub fn modify() {
    let p = pair();
    let e = epoll();
    add(e, p.acceptor, EPOLLIN, 1);
    note("add twice", control(e, EPOLL_CTL_ADD, p.acceptor, EPOLLIN, 1));
    note("modify another", control(e, EPOLL_CTL_MOD, p.connector, EPOLLIN, 1));
    note("no operation", control(e, 9, p.acceptor, EPOLLIN, 1));
    send(p.connector, b"abc", 0);
    note("mute", control(e, EPOLL_CTL_MOD, p.acceptor, 0, 2));
    note("muted", wait(e, 8, 0));
    note("unmute", control(e, EPOLL_CTL_MOD, p.acceptor, EPOLLIN | EPOLLOUT, 3));
    note("both", wait(e, 8, SOON));
    note("writable only", control(e, EPOLL_CTL_MOD, p.acceptor, EPOLLOUT, 4));
    note("writable", wait(e, 8, SOON));
    note("delete", control(e, EPOLL_CTL_DEL, p.acceptor, 0, 0));
    note("deleted", wait(e, 8, 0));
    note("delete again", control(e, EPOLL_CTL_DEL, p.acceptor, 0, 0));
    add(e, p.acceptor, EPOLLIN, 5);
    note("added again", wait(e, 8, SOON));
    p.close();
    close(e);
}

pub fn copied_descriptor() {
    let p = pair();
    let e = epoll();
    // SAFETY: dup of a descriptor.
    let copy = unsafe { libc::dup(p.acceptor) };
    add(e, p.acceptor, EPOLLIN, 1);
    add(e, copy, EPOLLIN, 2);
    send(p.connector, b"abc", 0);
    note("both", wait(e, 8, SOON));
    note("delete one", control(e, EPOLL_CTL_DEL, p.acceptor, 0, 0));
    close(p.acceptor);
    note("the other", wait(e, 8, SOON));
    note("recv", recv(copy, 9, 0));
    send(p.connector, b"def", 0);
    note("the other again", wait(e, 8, SOON));
    close(copy);
    close(p.connector);
    close(e);
}

/// One of two copies is deleted; a wait that begins afterwards is woken for the other.
pub fn copies_added_in_turn() {
    let (p, q) = (pair(), pair());
    let e = epoll();
    // SAFETY: dup of a descriptor.
    let copy = unsafe { libc::dup(p.acceptor) };
    add(e, p.acceptor, EPOLLIN, 1);
    add(e, copy, EPOLLIN, 2);
    note("delete one", control(e, EPOLL_CTL_DEL, p.acceptor, 0, 0));
    note("nothing", wait(e, 8, 0));
    for round in 0..3 {
        let later = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            send(p.connector, b"abc", 0);
        });
        note("the other", wait(e, 8, SOON));
        note("recv", recv(copy, 9, 0));
        later.join().unwrap();
        if round == 1 {
            // Another session in the place of the first one.
            add(e, q.acceptor, EPOLLIN, 3);
            note("nothing", wait(e, 8, 0));
        }
    }
    close(copy);
    p.close();
    q.close();
    close(e);
}

/// The descriptor by which a connection was added is closed, and its number is used again, while a copy is open.
pub fn closed_while_copied() {
    let (p, q) = (pair(), pair());
    let e = epoll();
    // SAFETY: dup of a descriptor.
    let copy = unsafe { libc::dup(p.acceptor) };
    add(e, p.acceptor, EPOLLIN, 1);
    close(p.acceptor);
    note("delete", control(e, EPOLL_CTL_DEL, p.acceptor, 0, 0));
    send(p.connector, b"abc", 0);
    note("readable", wait(e, 8, SOON));
    note("recv", recv(copy, 9, 0));
    // SAFETY: a copy of a descriptor.
    note("the number again", unsafe { libc::dup2(q.acceptor, p.acceptor) } == p.acceptor);
    note("modify", control(e, EPOLL_CTL_MOD, p.acceptor, EPOLLIN, 2));
    note("add", control(e, EPOLL_CTL_ADD, p.acceptor, EPOLLIN, 2));
    note("nothing", wait(e, 8, 0));
    for data in [b"a", b"b"] {
        send(p.connector, data, 0);
        note("the first", wait(e, 8, SOON));
        send(q.connector, data, 0);
        note("both", wait(e, 8, SOON));
        note("recv", format!("{} {}", recv(copy, 9, 0), recv(q.acceptor, 9, 0)));
    }
    note("modify", control(e, EPOLL_CTL_MOD, p.acceptor, EPOLLOUT, 3));
    note("writable", wait(e, 8, SOON));
    note("delete", control(e, EPOLL_CTL_DEL, p.acceptor, 0, 0));
    close(p.connector);
    note("end of the first", wait(e, 8, SOON));
    note("recv", recv(copy, 9, 0));
    close(copy);
    note("closed", wait(e, 8, 0));
    close(p.acceptor);
    q.close();
    close(e);
}

/// A child closes what it inherits. Its parent gets events as before.
pub fn closed_in_child() {
    let (p, q) = (pair(), pair());
    let e = epoll();
    add(e, p.acceptor, EPOLLIN, 1);
    // SAFETY: dup of a descriptor.
    let copy = unsafe { libc::dup(q.acceptor) };
    add(e, q.acceptor, EPOLLIN, 2);
    note("nothing", wait(e, 8, 0));
    let child = in_child(|| {
        p.close();
        q.close();
    });
    note("child", end_of(child));
    for pair in [p, q] {
        let later = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            send(pair.connector, b"abc", 0);
        });
        note("readable", wait(e, 8, SOON));
        note("recv", recv(pair.acceptor, 9, 0));
        later.join().unwrap();
    }
    note("modify", control(e, EPOLL_CTL_MOD, q.acceptor, EPOLLIN | EPOLLOUT, 3));
    note("writable", wait(e, 8, SOON));
    close(copy);
    p.close();
    q.close();
    close(e);
}

pub fn poll_and_select() {
    let (p, q) = (pair(), pair());
    let select = |milliseconds: i64| {
        // SAFETY: sets and a time of this closure.
        unsafe {
            let (mut read, mut write): (libc::fd_set, libc::fd_set) = (std::mem::zeroed(), std::mem::zeroed());
            [p.acceptor, q.acceptor].iter().for_each(|&fd| libc::FD_SET(fd, &mut read));
            libc::FD_SET(p.connector, &mut write);
            let mut time = libc::timeval { tv_sec: milliseconds / 1000, tv_usec: milliseconds % 1000 * 1000 };
            let most = p.acceptor.max(q.acceptor).max(p.connector) + 1;
            let n = libc::select(most, &mut read, &mut write, std::ptr::null_mut(), &mut time);
            let set = [p.acceptor, q.acceptor].map(|fd| libc::FD_ISSET(fd, &read));
            format!("{n} {set:?} {}", libc::FD_ISSET(p.connector, &write))
        }
    };
    note("select of nothing", select(0));
    send(q.connector, b"abc", 0);
    note("poll", poll(q.acceptor, POLLIN | POLLOUT, SOON));
    note("select", select(SOON.into()));
    note("poll of the other", poll(p.acceptor, POLLIN, 0));
    recv(q.acceptor, 9, 0);
    note("select when drained", select(0));
    note("poll with a time limit", poll(q.acceptor, POLLIN, 20));
    close(q.connector);
    note("poll at the end", poll(q.acceptor, POLLIN | libc::POLLRDHUP, SOON));
    note("select at the end", select(SOON.into()));
    close(q.acceptor);
    note("poll of a closed one", poll(q.acceptor, POLLIN, 0) != "0 nothing");
    p.close();
}

/// The connection moves to rings while it is in an instance.
pub fn events_before_rings() {
    let p = fresh();
    let (e, f) = (epoll(), epoll());
    add(e, p.acceptor, EPOLLIN, 1);
    add(f, p.connector, EPOLLIN | EPOLLET, 2);
    for _ in 0..20 {
        send(p.connector, b"ping", 0);
        note("request", wait(e, 8, SOON));
        note("octets", recv(p.acceptor, 9, 0));
        send(p.acceptor, b"pong", 0);
        note("reply", wait(f, 8, SOON));
        note("octets", recv(p.connector, 9, 0));
        note("no more", format!("{} {}", wait(e, 8, 0), wait(f, 8, 0)));
    }
    p.close();
    close(e);
    close(f);
}

/// One call returns all that is ready, as long as there is room for it.
pub fn many() {
    let p = pair();
    let e = epoll();
    add(e, p.acceptor, EPOLLIN, 1000);
    // SAFETY: eventfd has no preconditions.
    let others: Vec<c_int> = (0..300).map(|_| unsafe { libc::eventfd(1, libc::EFD_CLOEXEC) }).collect();
    (0..).zip(&others).for_each(|(data, &fd)| add(e, fd, EPOLLIN, data));
    note("others", wait(e, 1024, SOON));
    send(p.connector, b"abc", 0);
    note("with the connection", wait(e, 1024, SOON));
    others.into_iter().for_each(close);
    p.close();
    close(e);
}

/// A full connection becomes writable when the other end has read.
pub fn writable() {
    let p = pair();
    set_nonblocking(p.connector, true);
    let e = epoll();
    add(e, p.connector, EPOLLOUT | EPOLLET, 1);
    note("writable", wait(e, 8, 0));
    let block = vec![0u8; 1 << 16];
    let mut sent = 0;
    loop {
        match send(p.connector, &block, 0) {
            -1 => break,
            n => sent += n,
        }
    }
    note("full", wait(e, 8, 0));
    let mut buffer = vec![0u8; 1 << 16];
    while sent > 0 {
        // SAFETY: the buffer has that many octets.
        sent -= unsafe { libc::recv(p.acceptor, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    }
    note("writable again", wait(e, 8, SOON));
    note("modify", control(e, EPOLL_CTL_MOD, p.connector, EPOLLOUT, 2));
    note("level", wait(e, 8, SOON));
    note("level", wait(e, 8, 0));
    p.close();
    close(e);
}

/// A wait for room costs no CPU time after the peer has ended its side, which the program did not ask for. Nor does a
/// wait for nothing.
pub fn full_after_the_end() {
    let p = pair();
    set_nonblocking(p.connector, true);
    let e = epoll();
    add(e, p.connector, EPOLLOUT, 1);
    note("room", wait(e, 8, SOON));
    control(e, EPOLL_CTL_MOD, p.connector, 0, 1);
    // SAFETY: shutdown of a descriptor.
    unsafe { libc::shutdown(p.acceptor, libc::SHUT_WR) };
    let block = vec![0u8; 1 << 16];
    for (what, events) in [("nothing asked", 0), ("no room", EPOLLOUT), ("nothing again", 0)] {
        if events != 0 {
            while send(p.connector, &block, 0) > 0 {}
        }
        control(e, EPOLL_CTL_MOD, p.connector, events, 1);
        let before = cpu_time();
        note(what, wait(e, 8, 300));
        note("busy meanwhile", cpu_time() - before > Duration::from_millis(100));
    }
    control(e, EPOLL_CTL_MOD, p.connector, EPOLLRDHUP, 1);
    note("the end, asked for later", wait(e, 8, SOON));
    p.close();
    close(e);
}

/// The socket is in an instance before it connects.
pub fn added_before_connect() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let e = epoll();
    // SAFETY: socket and connect with a structure of this function.
    let connector = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
        add(e, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1);
        note("before", wait(e, 8, 0));
        let mut server: libc::sockaddr_in = std::mem::zeroed();
        server.sin_family = libc::AF_INET as libc::sa_family_t;
        server.sin_port = listener.local_addr().unwrap().port().to_be();
        server.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
        note("connect", outcome(libc::connect(fd, std::ptr::from_ref(&server).cast(), 16) as isize));
        fd
    };
    note("connected", wait(e, 8, SOON));
    let acceptor = std::os::fd::IntoRawFd::into_raw_fd(listener.accept().unwrap().0);
    for _ in 0..20 {
        send(connector, b"ping", 0);
        note("request", recv(acceptor, 9, 0));
        send(acceptor, b"pong", 0);
        note("reply is there", wait(e, 8, SOON).contains("IN"));
        note("reply", recv(connector, 9, 0));
    }
    close(acceptor);
    note("end", wait(e, 8, SOON).contains("RDHUP"));
    close(connector);
    close(e);
}

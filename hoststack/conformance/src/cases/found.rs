// SPDX-License-Identifier: Apache-2.0

//! Differences that random programs have found (`--random`), as short cases.

use crate::sys::*;
use libc::{
    c_int, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL,
};
use libc::{POLLIN, POLLOUT};

fn time_limit(fd: c_int) {
    set_option(fd, libc::SO_RCVTIMEO, libc::timeval { tv_sec: 0, tv_usec: 20_000 });
}

fn shut_down(fd: c_int, how: c_int) {
    // SAFETY: shutdown of a descriptor.
    note("shutdown", outcome(unsafe { libc::shutdown(fd, how) } as isize));
}

/// Sends until no more goes.
fn fill(fd: c_int) {
    while send(fd, &[b'f'; 50_000], MSG_DONTWAIT | MSG_NOSIGNAL) > 0 {}
}

/// Calls with room for no octets: some do not ask the socket, others wait for octets and take none.
pub fn no_octets() {
    let p = pair();
    let fd = p.acceptor;
    time_limit(fd);
    let calls = || {
        let mut list = parts(&mut [&mut [], &mut []]);
        let mut message = message(&mut list);
        // SAFETY: no octets.
        unsafe {
            note("read", outcome(libc::read(fd, std::ptr::null_mut(), 0)));
            note("readv", outcome(libc::readv(fd, message.msg_iov, 2)));
            note("recvmsg", outcome(libc::recvmsg(fd, &mut message, 0)));
            note("write", outcome(libc::write(fd, std::ptr::null(), 0)));
            note("writev", outcome(libc::writev(fd, message.msg_iov, 2)));
        }
        for flags in [0, MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL] {
            note("recv", recv(fd, 0, flags));
        }
        note("send", outcome(send(fd, b"", MSG_NOSIGNAL)));
    };
    calls();
    send(p.connector, b"octets", 0);
    calls();
    note("recv", recv(fd, 20, 0));
    close(p.connector);
    calls();
    send(fd, b"x", MSG_NOSIGNAL);
    calls();
    close(fd);
}

/// One report of an epoll instance has all events of a connection, those of rings and the kernel's.
pub fn whole_events() {
    for how in [0, EPOLLET, EPOLLONESHOT] {
        for end in [true, false] {
            let (p, e) = (pair(), epoll());
            send(p.connector, b"octets", 0);
            if end {
                shut_down(p.connector, libc::SHUT_WR);
            } else {
                // What this end sends goes by the kernel then.
                shut_down(p.acceptor, libc::SHUT_WR);
            }
            add(e, p.acceptor, EPOLLIN | EPOLLOUT | EPOLLRDHUP | how, 1);
            note("octets and end", wait(e, 8, 0));
            note("again", wait(e, 8, 0));
            close(e);
            p.close();
        }
    }
}

/// An edge of a ring that was full once is reported once.
pub fn one_edge() {
    let (p, e) = (pair(), epoll());
    fill(p.connector);
    while recv(p.acceptor, 100_000, MSG_DONTWAIT) != "EAGAIN" || poll(p.acceptor, POLLIN, 50) != "0 nothing" {}
    note("writable", poll(p.connector, POLLOUT, 1000));
    add(e, p.connector, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    note("first", wait(e, 8, 0));
    note("second", wait(e, 8, 0));
    close(e);
    p.close();
}

/// Octets in a ring behind others that the kernel still has are an edge.
pub fn edge_behind_kernel() {
    let (p, e) = (fresh(), epoll());
    send(p.connector, b"by the kernel", 0);
    add(e, p.acceptor, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    note("first", wait(e, 8, 0));
    for _ in 0..8 {
        send(p.acceptor, b"w", 0);
        recv(p.connector, 1, 0);
    }
    wait(e, 8, 0);
    send(p.connector, b", and by the ring", 0);
    note("second", wait(e, 8, 0));
    note("recv", recv(p.acceptor, 40, 0));
    close(e);
    p.close();
}

/// Octets that another thread has received are no edge for who waits for room alone.
pub fn no_edge_of_room() {
    let (p, e) = (pair(), epoll());
    add(e, p.connector, EPOLLOUT | EPOLLET, 1);
    note("first", wait(e, 8, 0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            send(p.acceptor, b"octets", 0);
        });
        note("recv", recv(p.connector, 20, 0));
    });
    note("second", wait(e, 8, 0));
    fill(p.connector);
    while recv(p.acceptor, 100_000, MSG_DONTWAIT) != "EAGAIN" || poll(p.acceptor, POLLIN, 50) != "0 nothing" {}
    note("room", wait(e, 8, 1000));
    close(e);
    p.close();
}

/// What follows shutdown(2) is an error also if rings come later, and an error of the socket is there until it is
/// taken.
pub fn after_shutdown() {
    let p = fresh();
    shut_down(p.connector, libc::SHUT_WR);
    for _ in 0..20 {
        send(p.acceptor, b"w", 0);
        recv(p.connector, 1, 0);
    }
    note("send", outcome(send(p.connector, b"x", MSG_NOSIGNAL)));
    note("recv", recv(p.acceptor, 20, 0));
    p.close();
    let p = pair();
    send(p.connector, b"octets", 0);
    shut_down(p.acceptor, libc::SHUT_RDWR);
    send(p.connector, b"more", MSG_NOSIGNAL);
    note("recv", recv(p.acceptor, 20, 0));
    note("poll", poll(p.acceptor, POLLIN, 0));
    note("error", socket_error(p.acceptor));
    p.close();
}

/// A ring is full, and the peer goes on to read by another descriptor, or to write alone.
pub fn full_but_not_ended() {
    let p = pair();
    // SAFETY: a copy of a descriptor.
    let copy = unsafe { libc::dup(p.acceptor) };
    close(copy);
    fill(p.connector);
    note("a copy is closed", poll(p.connector, POLLOUT, 0));
    p.close();
    let p = pair();
    shut_down(p.connector, libc::SHUT_RD);
    note("recv", recv(p.connector, 20, 0));
    fill(p.connector);
    note("this end reads no more", poll(p.connector, POLLIN | POLLOUT, 0));
    note("send", outcome(send(p.connector, b"x", MSG_DONTWAIT | MSG_NOSIGNAL)));
    close(p.acceptor);
    note("the peer is gone", poll(p.connector, POLLOUT, 1000));
    send(p.connector, b"x", MSG_NOSIGNAL);
    note("send", outcome(send(p.connector, b"x", MSG_NOSIGNAL)));
    close(p.connector);
}

/// The end that has shut down receiving gets no error of a peer that has not read all.
pub fn shut_down_with_octets_in_flight() {
    for how in [libc::SHUT_RD, libc::SHUT_RDWR] {
        let p = pair();
        send(p.connector, b"octets", 0);
        shut_down(p.connector, how);
        note("this end", recv(p.connector, 20, 0));
        note("the peer", recv(p.acceptor, 20, 0));
        note("this end", recv(p.connector, 20, 0));
        p.close();
    }
}

/// SO_RCVLOWAT, in numbers below half of a ring.
pub fn low_mark() {
    let (p, e) = (pair(), epoll());
    let fd = p.acceptor;
    set_option(fd, libc::SO_RCVLOWAT, 10 as c_int);
    time_limit(fd);
    add(e, fd, EPOLLIN, 1);
    for count in [3, 6, 1, 5] {
        send(p.connector, &b"0123456789"[..count], 0);
        note("poll", poll(fd, POLLIN, 0));
        note("epoll", wait(e, 8, 0));
    }
    note("all", recv(fd, 100, 0));
    send(p.connector, b"few", 0);
    note("nonblocking", recv(fd, 100, MSG_DONTWAIT));
    send(p.connector, b"few", 0);
    note("after the time limit", recv(fd, 100, 0));
    send(p.connector, b"few", 0);
    note("room for as many", recv(fd, 3, 0));
    std::thread::scope(|scope| {
        set_option(fd, libc::SO_RCVTIMEO, libc::timeval { tv_sec: 5, tv_usec: 0 });
        scope.spawn(|| {
            for part in [&b"in "[..], b"three ", b"parts"] {
                std::thread::sleep(std::time::Duration::from_millis(20));
                send(p.connector, part, 0);
            }
        });
        note("in parts", recv(fd, 100, 0));
    });
    note("the rest", recv(fd, 100, MSG_DONTWAIT));
    send(p.connector, b"last", 0);
    shut_down(p.connector, libc::SHUT_WR);
    note("at the end", poll(fd, POLLIN, 1000));
    note("recv", recv(fd, 100, 0));
    note("recv", recv(fd, 100, 0));
    close(e);
    p.close();
}

/// An error that ends a call that has got octets is for the next call.
pub fn error_after_octets() {
    let p = pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(30));
            set_option(p.connector, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 });
            close(p.connector);
        });
        send(p.connector, b"octets", 0);
        note("recv", recv(p.acceptor, 20, MSG_WAITALL));
    });
    note("recv", recv(p.acceptor, 20, 0));
    note("recv", recv(p.acceptor, 20, 0));
    close(p.acceptor);
    // recvmmsg(2) reports an error before it looks for octets.
    let p = pair();
    close(p.connector);
    send(p.acceptor, b"to nobody", MSG_NOSIGNAL);
    let mut octets = [0u8; 20];
    let mut list = parts(&mut [&mut octets]);
    let mut one = libc::mmsghdr { msg_hdr: message(&mut list), msg_len: 0 };
    for _ in 0..2 {
        // SAFETY: one message and no time limit.
        let n = unsafe { libc::recvmmsg(p.acceptor, &mut one, 1, 0, std::ptr::null_mut()) };
        note("recvmmsg", outcome(n as isize));
    }
    close(p.acceptor);
}

/// A receive that takes nothing waits for as many octets as one that does.
pub fn peek_of_all() {
    let whole = libc::MSG_PEEK | libc::MSG_WAITALL;
    for on_rings in [true, false] {
        let p = if on_rings { pair() } else { fresh() };
        send(p.connector, b"few", 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for part in [&b", and"[..], b" more"] {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    send(p.connector, part, 0);
                }
            });
            note("all", recv(p.acceptor, 13, whole));
        });
        time_limit(p.acceptor);
        note("within the time limit", recv(p.acceptor, 20, whole));
        note("without waiting", recv(p.acceptor, 20, whole | MSG_DONTWAIT));
        set_option(p.acceptor, libc::SO_RCVLOWAT, 20 as c_int);
        note("fewer than the mark", recv(p.acceptor, 30, libc::MSG_PEEK));
        set_option(p.acceptor, libc::SO_RCVTIMEO, libc::timeval { tv_sec: 5, tv_usec: 0 });
        shut_down(p.connector, libc::SHUT_WR);
        note("at the end", recv(p.acceptor, 20, whole));
        note("taken", recv(p.acceptor, 20, libc::MSG_WAITALL));
        note("the end", recv(p.acceptor, 20, whole));
        p.close();
    }
}

/// What the socket has is received before the error of a reset.
pub fn octets_before_reset() {
    let p = pair();
    send(p.connector, b"unread", 0);
    shut_down(p.connector, libc::SHUT_WR);
    send(p.acceptor, b"octets", 0);
    shut_down(p.connector, libc::SHUT_RDWR);
    send(p.acceptor, b"more", MSG_NOSIGNAL);
    note("poll", poll(p.connector, POLLIN, 1000));
    note("recv", recv(p.connector, 20, 0));
    note("recv", recv(p.connector, 20, 0));
    note("recv", recv(p.connector, 20, 0));
    p.close();
}

/// shutdown(2) of sending before the connection has rings is no end of the peer, although it leaves octets unread.
pub fn shut_down_before_rings() {
    let other = pair();
    send(other.connector, b"by the ring", 0);
    note("another connection", recv(other.acceptor, 20, 0));
    other.close();
    let p = fresh();
    shut_down(p.acceptor, libc::SHUT_WR);
    for _ in 0..8 {
        send(p.connector, b"w", 0);
        recv(p.acceptor, 1, 0);
    }
    send(p.connector, b"unread", 0);
    note("poll", poll(p.connector, POLLIN | libc::POLLRDHUP, 0));
    note("send", outcome(send(p.connector, b" and more", 0)));
    note("recv", recv(p.acceptor, 20, 0));
    note("the end", recv(p.connector, 20, 0));
    p.close();
}

/// The error of a RST is there until it is taken, once.
pub fn reset_once() {
    let p = pair();
    send(p.connector, b"unread", 0);
    shut_down(p.connector, libc::SHUT_RDWR);
    send(p.acceptor, b"octets", MSG_NOSIGNAL);
    note("poll", poll(p.connector, POLLIN, 1000));
    note("send", outcome(send(p.connector, b"x", MSG_NOSIGNAL)));
    note("poll", poll(p.connector, POLLOUT, 1000));
    note("send", outcome(send(p.connector, b"x", MSG_NOSIGNAL)));
    p.close();
}

/// With EPOLLET room is no edge of which no send has found less.
pub fn no_edge_of_known_room() {
    let e = epoll();
    let p = pair();
    send(p.acceptor, b"unread", 0);
    add(e, p.connector, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    send(p.connector, b"octets", 0);
    shut_down(p.connector, libc::SHUT_WR);
    std::thread::sleep(std::time::Duration::from_millis(45));
    note("shut down", wait(e, 8, 0));
    note("poll", poll(p.connector, POLLOUT, 0));
    note("recv", recv(p.acceptor, 20, 0));
    note("after a poll", wait(e, 8, 0));
    p.close();
    let p = fresh();
    add(e, p.connector, EPOLLOUT | EPOLLET, 2);
    note("new", wait(e, 8, 0));
    warm_up(p);
    note("on rings", wait(e, 8, 0));
    send(p.acceptor, b"unread", 0);
    send(p.connector, b"unread", 0);
    close(p.acceptor);
    note("reset", wait(e, 8, 1000));
    note("send", outcome(send(p.connector, b"x", MSG_NOSIGNAL)));
    note("after a send", wait(e, 8, 0));
    close(p.connector);
    let p = pair();
    add(e, p.connector, EPOLLIN | EPOLLOUT | EPOLLET, 3);
    note("used before", wait(e, 8, 0));
    send(p.acceptor, b"octets", 0);
    note("recv", recv(p.connector, 20, 0));
    note("octets that were taken", wait(e, 8, 0));
    note("no more", wait(e, 8, 0));
    shut_down(p.connector, libc::SHUT_RDWR);
    std::thread::sleep(std::time::Duration::from_millis(45));
    note("both sides shut down", wait(e, 8, 0));
    send(p.acceptor, b"octets", 0);
    note("send after a reset", outcome(send(p.connector, b"x", MSG_NOSIGNAL)));
    note("reset", wait(e, 8, 0));
    note("over", wait(e, 8, 0));
    p.close();
    close(e);
}

/// The end of the peer is an edge, which reports room, also if a send comes before the wait. So is SO_RCVLOWAT.
pub fn edges_without_octets() {
    let (p, e) = (pair(), epoll());
    add(e, p.connector, EPOLLOUT | EPOLLET, 1);
    note("writable", wait(e, 8, 0));
    shut_down(p.acceptor, libc::SHUT_WR);
    note("send", send(p.connector, b"octets", 0));
    note("the end", wait(e, 8, 1000));
    p.close();
    let p = pair();
    send(p.connector, b"octets", 0);
    add(e, p.acceptor, EPOLLIN | EPOLLET, 2);
    note("readable", wait(e, 8, 1000));
    note("no edge", wait(e, 8, 0));
    for mark in [3, 100] {
        set_option(p.acceptor, libc::SO_RCVLOWAT, mark as c_int);
        note(mark, wait(e, 8, 0));
    }
    p.close();
    close(e);
}

/// A child has filled the connection, for which its parent waits.
pub fn edge_after_a_child() {
    let (p, e) = (pair(), epoll());
    add(e, p.connector, EPOLLOUT | EPOLLET, 1);
    note("writable", wait(e, 8, 0));
    let child = in_child(|| fill(p.connector));
    note("child", end_of(child));
    note("full", wait(e, 8, 0));
    while recv(p.acceptor, 1 << 20, MSG_DONTWAIT) != "EAGAIN" {}
    note("room", wait(e, 8, 1000));
    p.close();
    close(e);
}

/// A connection is in an instance when the kernel does not know its client any more.
pub fn added_again_after_reset() {
    pair().close();
    let (p, e) = (fresh(), epoll());
    set_option(p.connector, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 });
    close(p.connector);
    note("poll", poll(p.acceptor, POLLIN, 1000));
    for data in [1, 2] {
        note("add", control(e, libc::EPOLL_CTL_ADD, p.acceptor, EPOLLIN | EPOLLOUT, data));
    }
    note("wait", wait(e, 8, 1000));
    note("delete", control(e, libc::EPOLL_CTL_DEL, p.acceptor, 0, 0));
    note("deleted", wait(e, 8, 0));
    close(p.acceptor);
    close(e);
}

/// The error that ends a receive of all octets is that of the next call, also if only one end has asked for rings.
pub fn error_after_all() {
    pair().close();
    let p = fresh();
    send(p.connector, b"to the acceptor", 0);
    recv(p.acceptor, 1, 0);
    send(p.acceptor, b"unread", 0);
    close(p.connector);
    note("all", recv(p.acceptor, 100, MSG_WAITALL));
    note("peek", recv(p.acceptor, 100, MSG_PEEK | MSG_DONTWAIT));
    note("recv", recv(p.acceptor, 100, MSG_DONTWAIT));
    close(p.acceptor);
}

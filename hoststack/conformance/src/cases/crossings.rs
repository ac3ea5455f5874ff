// SPDX-License-Identifier: Apache-2.0

//! Where a stream goes from the kernel to the ring and back. No call may take less than there is, since programs take
//! that as the end of what there is.

use super::switch::Page;
use crate::sys::*;
use libc::{c_int, EPOLLET, EPOLLIN, EPOLLRDHUP, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SHUT_WR};
use std::time::{Duration, Instant};

const SOON: c_int = 5000;

/// Makes a connection that has moved to rings, while the connector has not read what came before.
pub fn unread_before_ring() -> Pair {
    let p = fresh();
    send(p.acceptor, b"by the kernel, ", 0);
    for _ in 0..32 {
        send(p.connector, b"w", 0);
        assert_eq!(recv(p.acceptor, 1, 0), "1 w");
    }
    send(p.acceptor, b"by the ring", 0);
    p
}

/// Waits until the kernel has delivered what was sent, also an end.
fn arrived() {
    std::thread::sleep(Duration::from_millis(50));
}

type Call = (&'static str, fn(c_int) -> String);

pub fn kernel_then_ring() {
    let calls: [Call; 6] = [
        ("recv", |fd| recv(fd, 100, 0)),
        ("exactly", |fd| recv(fd, 26, 0)),
        ("peek", |fd| recv(fd, 100, MSG_PEEK)),
        ("at once or not at all", |fd| recv(fd, 100, MSG_DONTWAIT)),
        ("all", |fd| recv(fd, 26, MSG_WAITALL)),
        // SAFETY: MSG_TRUNC of TCP stores nothing.
        ("trunc", |fd| outcome(unsafe { libc::recv(fd, std::ptr::null_mut(), 100, MSG_TRUNC) })),
    ];
    for (what, call) in calls {
        let p = unread_before_ring();
        note(what, call(p.connector));
        note("what is left", recv(p.connector, 100, MSG_DONTWAIT));
        p.close();
    }
    let p = unread_before_ring();
    let (mut a, mut b) = ([0u8; 10], [0u8; 50]);
    // SAFETY: buffers of this function, with their lengths.
    note("readv", outcome(unsafe { libc::readv(p.connector, parts(&mut [&mut a, &mut b]).as_ptr(), 2) }));
    note("parts", String::from_utf8_lossy(&[&a[..], &b[..16]].concat()));
    p.close();
}

/// A thread waits for more than the kernel is going to deliver, and the ring has enough behind that. Another thread
/// takes the octets of the kernel.
pub fn thread_behind_missing_octets() {
    let p = fresh();
    let cork = |on: c_int| set_option_of(p.acceptor, libc::IPPROTO_TCP, libc::TCP_CORK, on);
    cork(1);
    send(p.acceptor, b"by the kernel, ", 0);
    for _ in 0..32 {
        send(p.connector, b"w", 0);
        assert_eq!(recv(p.acceptor, 1, 0), "1 w");
    }
    send(p.acceptor, &[b'r'; 30], 0);
    set_option(p.connector, libc::SO_RCVLOWAT, 20 as c_int);
    // A receive takes what there is at its time limit, so the thread has it in the end in any case.
    let limit = Duration::from_secs(10);
    set_option(p.connector, libc::SO_RCVTIMEO, libc::timeval { tv_sec: limit.as_secs() as libc::time_t, tv_usec: 0 });
    let length = |received: String| received.split(' ').next().unwrap_or_default().to_owned();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| recv(p.connector, 30, 0));
        arrived(); // the thread waits
        cork(0);
        arrived();
        note("the other thread", length(recv(p.connector, 15, MSG_DONTWAIT)));
        let begin = Instant::now();
        note("the thread that waits", length(waits.join().unwrap()));
        note("before its time limit", begin.elapsed() < limit / 2);
    });
    p.close();
}

/// nginx stops at a read that got less than it asked for once the end was reported.
pub fn end_after_crossing() {
    let p = unread_before_ring();
    let e = epoll();
    add(e, p.connector, EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
    // SAFETY: shutdown of a descriptor.
    unsafe { libc::shutdown(p.acceptor, SHUT_WR) };
    arrived();
    note("edge", wait(e, 8, SOON));
    note("recv", recv(p.connector, 100, 0));
    note("end", recv(p.connector, 100, 0));
    p.close();
    close(e);
}

/// The other end leaves the ring between two sends.
pub fn ring_then_kernel() {
    for flags in [0, MSG_PEEK] {
        let p = pair();
        let page = Page::find();
        send(p.connector, b"by the ring, ", 0);
        page.switch(1);
        send(p.connector, b"by the kernel", 0);
        arrived();
        note("recv", recv(p.acceptor, 100, flags));
        note("what is left", recv(p.acceptor, 100, MSG_DONTWAIT));
        page.switch(0);
        p.close();
    }
}

/// The kernel has octets from before the ring and from after it. One call gets all, in order.
pub fn kernel_ring_kernel() {
    for flags in [0, MSG_DONTWAIT] {
        let p = unread_before_ring();
        let page = Page::find();
        page.switch(1);
        send(p.acceptor, b", by the kernel again", 0);
        arrived();
        note("recv", recv(p.connector, 21, flags));
        note("recv", recv(p.connector, 100, flags));
        note("what is left", recv(p.connector, 100, MSG_DONTWAIT));
        page.switch(0);
        p.close();
    }
}

/// A receive that gets octets of the ring and of the kernel leaves the reset for the next one.
pub fn reset_after_ring() {
    for more in [true, false] {
        let p = pair();
        let page = Page::find();
        send(p.connector, b"by the ring, ", 0);
        send(p.acceptor, b"not read", 0);
        page.switch(1);
        if more {
            send(p.connector, b"by the kernel", 0);
        }
        send(p.acceptor, b"", MSG_DONTWAIT);
        set_option(p.connector, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 });
        arrived();
        close(p.connector);
        arrived();
        note("recv", recv(p.acceptor, 100, 0));
        note("reset", recv(p.acceptor, 100, 0));
        note("end", recv(p.acceptor, 100, 0));
        page.switch(0);
        close(p.acceptor);
    }
}

/// One call takes all of many buffers, on the kernel and on the ring.
pub fn many_buffers() {
    let p = fresh();
    set_nonblocking(p.connector, true);
    set_nonblocking(p.acceptor, true);
    for what in ["first", "on rings"] {
        let mut octets: Vec<[u8; 10]> = (0..200).map(|i| [i; 10]).collect();
        let mut list = octets.iter_mut().map(|part| &mut part[..]).collect::<Vec<_>>();
        let list = parts(&mut list);
        // SAFETY: buffers of this function, with their lengths.
        note(what, outcome(unsafe { libc::writev(p.connector, list.as_ptr(), 200) }));
        arrived();
        octets.fill([0; 10]);
        // SAFETY: as above.
        note("readv", outcome(unsafe { libc::readv(p.acceptor, list.as_ptr(), 200) }));
        note("in order", (0..200).all(|i| octets[i as usize] == [i; 10]));
        for fd in [p.connector, p.acceptor] {
            set_nonblocking(fd, false);
        }
        warm_up(p);
    }
    p.close();
}

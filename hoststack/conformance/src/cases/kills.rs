// SPDX-License-Identifier: Apache-2.0

//! A peer that ends without closing: what it has not read resets the connection, and what it has sent can be read.

use super::ends::{count_sigpipes, sigpipes};
use crate::sys::*;
use libc::{
    c_int, EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, POLLIN, POLLOUT, POLLRDHUP,
};
use std::io::{Read, Write};
use std::time::Duration;

const SOON: c_int = 5000;

/// What the peer has not read, and what this end has not, when the peer is killed.
const KINDS: [(&str, bool, bool); 4] = [
    ("nothing unread", false, false),
    ("unread there", true, false),
    ("unread here", false, true),
    ("unread on both sides", true, true),
];

/// The only process that has the connector of a pair.
struct Peer(c_int);

impl Peer {
    /// Returns when the peer has sent what it sends.
    fn start(p: Pair, unread_here: bool) -> Self {
        let (mut ready, mut done) = std::io::pipe().expect("pipe");
        let peer = Self(in_child(|| {
            close(p.acceptor);
            if unread_here {
                send(p.connector, b"testament", 0);
            }
            done.write_all(b"d").expect("write");
            // SAFETY: sleeps until it is killed.
            unsafe { libc::pause() };
        }));
        ready.read_exact(&mut [0]).expect("read");
        close(p.connector);
        peer
    }

    /// Returns when the kernel has delivered the end of the connection.
    fn kill(&self) {
        // SAFETY: kill of this process's child.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        end_of(self.0);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills peers, and then has `f` look at the acceptor.
fn each_kind(f: impl Fn(c_int)) {
    count_sigpipes();
    for (what, there, here) in KINDS {
        note("kind", what);
        let p = pair();
        let peer = Peer::start(p, here);
        if there {
            send(p.acceptor, b"nobody reads this", 0);
        }
        peer.kill();
        f(p.acceptor);
        close(p.acceptor);
    }
}

fn receives(fd: c_int) {
    for _ in 0..3 {
        note("recv", recv(fd, 5, 0));
    }
}

fn sends(fd: c_int) {
    for _ in 0..3 {
        note("send", outcome(send(fd, b"x", 0)));
        note("signals", sigpipes());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn polls(fd: c_int) {
    note("poll", poll(fd, POLLIN | POLLOUT | POLLRDHUP, 0));
}

pub fn killed_then_received() {
    each_kind(|fd| {
        receives(fd);
        polls(fd);
        sends(fd);
        receives(fd);
        polls(fd);
    });
}

pub fn killed_then_sent() {
    each_kind(|fd| {
        sends(fd);
        polls(fd);
        receives(fd);
        sends(fd);
    });
}

pub fn killed_then_polled() {
    each_kind(|fd| {
        polls(fd);
        polls(fd);
        note("peek", recv(fd, 5, MSG_PEEK));
        polls(fd);
        sends(fd);
        receives(fd);
    });
}

pub fn killed_then_asked() {
    each_kind(|fd| {
        note("SO_ERROR", socket_error(fd));
        note("SO_ERROR", socket_error(fd));
        polls(fd);
        receives(fd);
        sends(fd);
    });
}

pub fn killed_under_epoll() {
    count_sigpipes();
    for events in [EPOLLIN | EPOLLRDHUP, EPOLLOUT, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 0] {
        for (what, there, here) in KINDS {
            note("kind", format!("{what}, {}", bits(events as u32)));
            let (p, e) = (pair(), epoll());
            let peer = Peer::start(p, here);
            add(e, p.acceptor, events, 1);
            if there {
                send(p.acceptor, b"nobody reads this", 0);
            }
            if events & EPOLLET != 0 {
                note("before", wait(e, 8, SOON));
            }
            peer.kill();
            let edge = |what| note(what, wait(e, 8, 100));
            edge("killed");
            if events & EPOLLET == 0 {
                edge("still");
            }
            receives(p.acceptor);
            if events & EPOLLET == 0 {
                edge("received");
            }
            sends(p.acceptor);
            close(p.acceptor);
            close(e);
        }
    }
}

/// A connection that was added without events before it had rings.
pub fn killed_unasked() {
    let (p, e) = (fresh(), epoll());
    add(e, p.acceptor, 0, 1);
    warm_up(p);
    let peer = Peer::start(p, false);
    send(p.acceptor, b"nobody reads this", 0);
    note("before", wait(e, 8, 0));
    peer.kill();
    note("killed", wait(e, 8, 1000));
    close(p.acceptor);
    close(e);
}

/// Threads that wait while the peer is killed.
pub fn killed_while_waiting() {
    count_sigpipes();
    for there in [false, true] {
        let p = pair();
        let peer = Peer::start(p, false);
        if there {
            send(p.acceptor, b"nobody reads this", 0);
        }
        let reader = std::thread::spawn(move || recv(p.acceptor, 5, 0));
        std::thread::sleep(Duration::from_millis(50));
        peer.kill();
        note("reader", reader.join().unwrap());
        sends(p.acceptor);
        close(p.acceptor);
    }
    let p = pair();
    let peer = Peer::start(p, true);
    send(p.acceptor, b"nobody reads this", 0);
    let reader = std::thread::spawn(move || recv(p.acceptor, 20, MSG_WAITALL));
    std::thread::sleep(Duration::from_millis(50));
    peer.kill();
    note("reader of more", reader.join().unwrap());
    receives(p.acceptor);
    close(p.acceptor);
    let p = pair();
    let peer = Peer::start(p, false);
    let writer = std::thread::spawn(move || {
        let block = vec![0u8; 1 << 20];
        let mut sent = 0;
        while sent >= 0 {
            sent = send(p.acceptor, &block, 0);
        }
        outcome(sent)
    });
    std::thread::sleep(Duration::from_millis(50));
    peer.kill();
    note("writer", writer.join().unwrap());
    note("signals", sigpipes());
    note("recv", recv(p.acceptor, 5, MSG_DONTWAIT));
    sends(p.acceptor);
    close(p.acceptor);
}

/// One of two processes that have the connection is killed: the other one goes on. Its end is the end.
pub fn killed_beside_another() {
    count_sigpipes();
    let p = pair();
    let peer = Peer::start(p, false);
    let p = pair();
    let child = in_child(|| {
        close(p.acceptor);
        // SAFETY: sleeps until it is killed.
        unsafe { libc::pause() };
    });
    // SAFETY: kill of this process's child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    end_of(child);
    peer.kill();
    send(p.acceptor, b"goes on", 0);
    note("recv", recv(p.connector, 20, 0));
    send(p.acceptor, b"not read", 0);
    close(p.connector);
    receives(p.acceptor);
    close(p.acceptor);
}

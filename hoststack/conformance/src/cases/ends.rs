// SPDX-License-Identifier: Apache-2.0

//! How connections end.

use crate::sys::*;
use libc::{c_int, MSG_NOSIGNAL, POLLIN, POLLOUT, POLLRDHUP};
use std::sync::atomic::{AtomicUsize, Ordering};

static SIGPIPES: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_sigpipe(_: c_int) {
    SIGPIPES.fetch_add(1, Ordering::Relaxed);
}

pub fn count_sigpipes() {
    // SAFETY: a handler that only counts.
    unsafe { libc::signal(libc::SIGPIPE, on_sigpipe as *const () as usize) };
}

/// Returns how many have come.
pub fn sigpipes() -> usize {
    SIGPIPES.load(Ordering::Relaxed)
}

pub fn half_close() {
    let p = pair();
    send(p.connector, b"last words", 0);
    // SAFETY: shutdown of a descriptor.
    note("shutdown", outcome(unsafe { libc::shutdown(p.connector, libc::SHUT_WR) } as isize));
    note("poll", poll(p.acceptor, POLLIN | POLLRDHUP | POLLOUT, 1000));
    note("recv", recv(p.acceptor, 4, 0));
    note("recv", recv(p.acceptor, 20, 0));
    note("recv at the end", recv(p.acceptor, 20, 0));
    note("recv at the end", recv(p.acceptor, 20, 0));
    note("send the other way", outcome(send(p.acceptor, b"still here", 0)));
    note("recv the other way", recv(p.connector, 20, 0));
    note("send after shutdown", outcome(send(p.connector, b"x", MSG_NOSIGNAL)));
    count_sigpipes();
    note("send with signal", outcome(send(p.connector, b"x", 0)));
    note("signals", sigpipes());
    p.close();
}

pub fn close_with_data() {
    let p = pair();
    send(p.connector, b"before the end", 0);
    close(p.connector);
    note("recv", recv(p.acceptor, 6, 0));
    note("recv", recv(p.acceptor, 20, 0));
    note("recv", recv(p.acceptor, 20, 0));
    note("first send", outcome(send(p.acceptor, b"x", MSG_NOSIGNAL)));
    note("poll", poll(p.acceptor, POLLIN | POLLOUT | POLLRDHUP, 1000));
    note("second send", outcome(send(p.acceptor, b"x", MSG_NOSIGNAL)));
    note("recv", recv(p.acceptor, 20, 0));
    close(p.acceptor);
}

/// A socket closed with unread data resets the connection.
pub fn close_unread() {
    let p = pair();
    send(p.connector, b"nobody reads this", 0);
    send(p.acceptor, b"but this", 0);
    close(p.acceptor);
    note("poll", poll(p.connector, POLLIN | POLLRDHUP, 1000));
    note("SO_ERROR, which takes it", socket_error(p.connector));
    note("recv", recv(p.connector, 20, 0));
    note("recv", recv(p.connector, 20, 0));
    note("send", outcome(send(p.connector, b"x", MSG_NOSIGNAL)));
    close(p.connector);
}

pub fn linger_reset() {
    let p = pair();
    set_option(p.acceptor, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 });
    close(p.acceptor);
    note("recv", recv(p.connector, 20, 0));
    note("recv again", recv(p.connector, 20, 0));
    note("send", outcome(send(p.connector, b"x", MSG_NOSIGNAL)));
    close(p.connector);
}

pub fn shutdown_of_reading() {
    let p = pair();
    send(p.connector, b"queued", 0);
    // SAFETY: shutdown of a descriptor.
    note("shutdown", outcome(unsafe { libc::shutdown(p.acceptor, libc::SHUT_RD) } as isize));
    note("recv", recv(p.acceptor, 20, 0));
    note("recv", recv(p.acceptor, 20, 0));
    note("send", outcome(send(p.acceptor, b"reply", 0)));
    note("recv the other way", recv(p.connector, 20, 0));
    p.close();
}

/// A peer that is killed has sent what it has sent.
pub fn peer_killed() {
    let p = pair();
    let child = in_child(|| {
        close(p.acceptor);
        send(p.connector, b"testament", 0);
        // SAFETY: sleeps until it is killed.
        unsafe { libc::pause() };
    });
    close(p.connector);
    note("recv", recv(p.acceptor, 4, 0));
    // SAFETY: kill of this process's child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    note("child", end_of(child));
    note("recv", recv(p.acceptor, 20, 0));
    note("recv", recv(p.acceptor, 20, 0));
    note("poll", poll(p.acceptor, POLLIN | POLLRDHUP, 1000));
    close(p.acceptor);
}

/// A writer that waits for room learns that the reader was killed.
pub fn writer_of_killed_peer() {
    let p = pair();
    let child = in_child(|| {
        close(p.acceptor);
        // SAFETY: sleeps until it is killed.
        unsafe { libc::pause() };
    });
    close(p.connector);
    let killer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        // SAFETY: kill of this process's child.
        unsafe { libc::kill(child, libc::SIGKILL) };
    });
    let block = vec![0u8; 1 << 20];
    let error = loop {
        if send(p.acceptor, &block, MSG_NOSIGNAL) < 0 {
            break errno();
        }
    };
    note("send ends", error == libc::EPIPE || error == libc::ECONNRESET);
    killer.join().unwrap();
    note("child", end_of(child));
    close(p.acceptor);
}

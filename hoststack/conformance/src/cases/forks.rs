// SPDX-License-Identifier: Apache-2.0

//! Servers that fork: the process that has a connection alone may get rings for it, and a third one keeps it on the
//! kernel.

use super::bulk::{consume, produce};
use super::switch::Page;
use crate::sys::*;
use libc::c_int;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::time::Duration;

const ROUNDS: usize = 40;

/// Answers requests until the end of the connection.
fn serve(fd: c_int) {
    loop {
        let request = recv(fd, 20, 0);
        match request.split_once(' ') {
            Some(("0", _)) => break,
            Some((_, text)) => assert!(send(fd, text.as_bytes(), 0) > 0),
            None => panic!("{request}"),
        }
    }
    close(fd);
}

fn converse(fd: c_int) {
    for i in 0..ROUNDS {
        let text = format!("request {i}");
        assert_eq!(send(fd, text.as_bytes(), 0), text.len() as isize);
        assert_eq!(recv(fd, 20, 0), format!("{} {text}", text.len()));
    }
}

/// A server with a child for each connection, which the parent closes.
pub fn forked_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for connection in 1..=6 {
        let p = accept_from(&listener, None);
        let child = in_child(|| {
            close(p.connector);
            serve(p.acceptor);
        });
        close(p.acceptor);
        converse(p.connector);
        close(p.connector);
        note("child", end_of(child));
        if let Some([attached, ..]) = counters() {
            assert_eq!(attached, 2 * connection, "ends on rings");
        }
    }
}

/// The same for octets in mass, which begin on the kernel.
pub fn forked_bulk() {
    const TOTAL: usize = 4 << 20;
    let p = fresh();
    let child = in_child(|| {
        close(p.connector);
        produce(p.acceptor, TOTAL, 3);
        note("in the child", consume(p.acceptor, TOTAL, 4));
    });
    close(p.acceptor);
    note("in the parent", consume(p.connector, TOTAL, 3));
    produce(p.connector, TOTAL, 4);
    note("child", end_of(child));
    note("end", recv(p.connector, 1, 0));
    close(p.connector);
}

/// A third process has the server's end, and may use it at any time.
pub fn held_by_another() {
    let p = fresh();
    let (wakes, waits) = std::os::unix::net::UnixStream::pair().unwrap();
    let other = in_child(|| {
        close(p.connector);
        recv(waits.as_raw_fd(), 1, 0);
        send(p.acceptor, b"from another", 0);
    });
    let child = in_child(|| {
        close(p.connector);
        serve(p.acceptor);
    });
    close(p.acceptor);
    converse(p.connector);
    send(wakes.as_raw_fd(), b"!", 0);
    note("recv", recv(p.connector, 20, 0));
    note("another", end_of(other));
    close(p.connector);
    note("child", end_of(child));
}

/// A thread forks while others get rings: no child is left with a connection that this process has on rings without it.
pub fn forked_while_asking() {
    let forks = std::thread::spawn(|| {
        for _ in 0..300 {
            let child = in_child(|| {});
            assert_eq!(end_of(child), "exit 0");
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for connection in 0..200 {
        let p = accept_from(&listener, None);
        for i in 0..20 {
            let text = format!("{connection}.{i}");
            for (from, to) in [(p.connector, p.acceptor), (p.acceptor, p.connector)] {
                assert_eq!(send(from, text.as_bytes(), 0), text.len() as isize);
                assert_eq!(recv(to, 20, 0), format!("{} {text}", text.len()));
            }
        }
        p.close();
    }
    forks.join().unwrap();
    note("connections", 200);
}

/// A child uses the connection that it has inherited while the parent would ask for rings.
pub fn forked_and_shared() {
    let p = fresh();
    let (wakes, waits) = std::os::unix::net::UnixStream::pair().unwrap();
    let child = in_child(|| {
        close(p.connector);
        recv(waits.as_raw_fd(), 1, 0);
        note("child", recv(p.acceptor, 20, 0));
        send(p.acceptor, b"from the child", 0);
    });
    warm_up(p);
    send(p.connector, b"to the child", 0);
    send(wakes.as_raw_fd(), b"!", 0);
    note("parent", recv(p.connector, 20, 0));
    note("end", end_of(child));
    // Now this process has it alone, and asks at one of the next operations.
    (0..8).for_each(|_| warm_up(p));
    p.close();
}

/// Where the page counts connections that have not answered.
const NO_ANSWER: usize = 120;

/// Clients without the library: after some connections the others are not asked any more.
pub fn unresponsive_clients() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    accept_from(&listener, None).close(); // has the library make its page
    let page = Page::find();
    let mut unasked = 0;
    for connection in 0..12 {
        let p = by_raw_connect(&listener);
        let exchange = || {
            for _ in 0..12 {
                ask_raw(p.connector, b"q");
                assert_eq!(recv(p.acceptor, 1, 0), "1 q");
                assert_eq!(send(p.acceptor, b"r", 0), 1);
            }
        };
        exchange();
        std::thread::sleep(Duration::from_millis(30));
        // The first attempt, and one after which it is known that the client is unresponsive.
        let exchange = || {
            exchange();
            std::thread::sleep(Duration::from_millis(80));
            exchange();
        };
        page.grows(
            NO_ANSWER,
            |n| {
                unasked += n;
                n <= 1
            },
            exchange,
        );
        p.close();
        assert!(connection > 2 || unasked == 0, "one of the first has not been asked");
    }
    if counters().is_some() {
        assert!((6..=9).contains(&unasked), "{unasked} of 12 were not asked");
    }
    note("connections", 12);
}

/// Returns a connection whose connector the library does not know.
fn by_raw_connect(listener: &TcpListener) -> Pair {
    // SAFETY: zero is a valid sockaddr_in, which lives as long as the call.
    let connector = unsafe {
        let mut server: libc::sockaddr_in = std::mem::zeroed();
        server.sin_family = libc::AF_INET as libc::sa_family_t;
        server.sin_port = listener.local_addr().unwrap().port().to_be();
        server.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        assert_eq!(enter(libc::SYS_connect, [fd as usize, std::ptr::from_ref(&server) as usize, 16]), 0);
        fd
    };
    let acceptor = std::os::fd::IntoRawFd::into_raw_fd(listener.accept().unwrap().0);
    Pair { connector, acceptor }
}

fn ask_raw(fd: c_int, octets: &[u8]) {
    // SAFETY: the octets live as long as the call.
    let n = unsafe { enter(libc::SYS_write, [fd as usize, octets.as_ptr() as usize, octets.len()]) };
    assert_eq!(n as usize, octets.len());
}

// SPDX-License-Identifier: Apache-2.0

//! How connections begin, and with whom.

use crate::sys::*;
use libc::{POLLIN, POLLOUT};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

pub fn connect_and_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // SAFETY: socket calls with structures of this function.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let fd = libc::socket(libc::AF_INET, kind, 0);
        let mut server: libc::sockaddr_in = std::mem::zeroed();
        server.sin_family = libc::AF_INET as libc::sa_family_t;
        server.sin_port = port.to_be();
        server.sin_addr.s_addr = u32::from(Ipv4Addr::LOCALHOST).to_be();
        let place = std::ptr::from_ref(&server).cast();
        note("connect", outcome(libc::connect(fd, place, 16) as isize));
        note("poll", poll(fd, POLLOUT, 1000));
        note("SO_ERROR", socket_error(fd));
        let mut peer: libc::sockaddr_in = std::mem::zeroed();
        let mut length = 16;
        libc::getpeername(fd, std::ptr::from_mut(&mut peer).cast(), &mut length);
        note("getpeername", peer.sin_port == server.sin_port);
        close(fd);

        drop(listener);
        let fd = libc::socket(libc::AF_INET, kind, 0);
        note("connect to nobody", outcome(libc::connect(fd, place, 16) as isize));
        note("poll", poll(fd, POLLOUT | POLLIN, 1000));
        note("SO_ERROR", socket_error(fd));
        note("send", outcome(send(fd, b"x", libc::MSG_NOSIGNAL)));
        close(fd);
    }
}

/// Connections of IPv6, and of IPv4 to a socket of IPv6.
pub fn families() {
    let p = fresh_at("[::1]:0".parse().unwrap(), None);
    warm_up(p);
    send(p.connector, b"six", 0);
    note("over IPv6", recv(p.acceptor, 10, 0));
    p.close();
    let p = fresh_at("[::]:0".parse().unwrap(), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    warm_up(p);
    send(p.acceptor, b"four", 0);
    note("IPv4 to IPv6", recv(p.connector, 10, 0));
    p.close();
}

/// The other end is a program without the library: curl's place is taken by a shell's /dev/tcp.
pub fn peer_without_library() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; for i in 1 2 3 4 5 6 7 8; do echo ping$i >&3; read -r line <&3; done; echo $line");
    let child = Command::new("bash")
        .args(["-c", &script])
        .env_remove("LD_PRELOAD")
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash");
    let (stream, _) = listener.accept().unwrap();
    let fd = stream.as_raw_fd();
    for i in 1..=8 {
        note("request", recv(fd, 20, 0).trim_end());
        send(fd, format!("pong{i}\n").as_bytes(), 0);
    }
    note("end", recv(fd, 20, 0));
    let output = child.wait_with_output().unwrap();
    note("last reply", String::from_utf8_lossy(&output.stdout).trim_end());
}

/// The library remembers to which address a listener is bound, until its number is another socket's.
pub fn listeners() {
    let expected = std::cell::Cell::new(0);
    let at = |address: &str| TcpListener::bind(address).expect("bind");
    let accepts = |what: &str, listener: &TcpListener, by: &str| {
        for _ in 0..2 {
            let p = accept_from(listener, Some(by.parse().expect("an address")));
            warm_up(p);
            p.close();
            expected.set(expected.get() + 2);
        }
        let attached = counters().map_or(expected.get(), |[attached, ..]| attached);
        assert_eq!(attached, expected.get(), "ends on rings: {what}");
        note(what, "exchanged");
    };
    let first = at("127.0.0.1:0");
    accepts("bound to an address", &first, "127.0.0.1");
    let number = first.as_raw_fd();
    drop(first);
    let second = at("127.0.0.2:0");
    assert_eq!(second.as_raw_fd(), number, "the number again");
    accepts("its number with another address", &second, "127.0.0.2");
    let third = at("127.0.0.3:0");
    // SAFETY: a copy of a descriptor.
    assert_eq!(unsafe { libc::dup2(third.as_raw_fd(), number) }, number);
    accepts("another listener over it", &second, "127.0.0.3");
    let any = at("0.0.0.0:0");
    accepts("bound to no address", &any, "127.0.0.4");
    accepts("by another address", &any, "127.0.0.5");
}

// SPDX-License-Identifier: Apache-2.0

//! Connections that stay on the kernel because a system call is not allowed, or another user interferes.

use super::offers;
use crate::sys::*;
use libc::{c_int, c_long, sock_filter, AF_NETLINK, AF_UNIX};
use std::mem::offset_of;

const NOBODY: libc::uid_t = 65534;

/// Runs `f` in a thread of another user than the one who runs the cases: for the kernel, users belong to threads.
/// The library keeps connections on the kernel that a child has, too.
fn as_nobody(f: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(|| {
        // SAFETY: changes the user of this thread.
        let changed = unsafe {
            (
                libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY),
                libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY),
            )
        };
        assert_eq!(changed, (0, 0));
        f();
    })
}

/// An offer that is right, but that another user makes who has no end of the connection.
pub fn offer_of_another_user() {
    let p = fresh();
    note("before", offers::ask(p));
    let thread = as_nobody(move || {
        offers::deliver(p, offers::Offer::right(p));
    });
    note("thread", thread.join().is_ok());
    note("after", offers::ask(p));
    p.close();
}

/// Another user has the name of the connector's offer socket.
pub fn offer_socket_of_another_user() {
    let p = fresh();
    let (address, length) = offers::offer_socket_address(p.connector);
    let (ready, is_ready) = std::io::pipe().unwrap();
    let thread = as_nobody(move || {
        // SAFETY: socket calls with an address of the case.
        let offer_socket = unsafe {
            let fd = libc::socket(AF_UNIX, libc::SOCK_SEQPACKET, 0);
            assert_eq!(libc::bind(fd, std::ptr::from_ref(&address).cast(), length), 0, "{}", name(errno()));
            assert_eq!(libc::listen(fd, 8), 0);
            fd
        };
        drop(is_ready);
        let visited = poll(offer_socket, libc::POLLIN, if counters().is_some() { 5000 } else { 0 });
        assert_eq!(visited.starts_with('1'), counters().is_some(), "a visit to the offer_socket: {visited}");
        // SAFETY: accept without an address; no connection is no descriptor.
        let connection = unsafe {
            libc::fcntl(offer_socket, libc::F_SETFL, libc::O_NONBLOCK);
            libc::accept(offer_socket, std::ptr::null_mut(), std::ptr::null_mut())
        };
        let message = recv(connection, 100, 0);
        note("message", if message.starts_with('0') || connection < 0 { "none" } else { &message });
    });
    std::io::Read::read(&mut &ready, &mut [0]).unwrap(); // the end of the pipe: the socket is there
    for _ in 0..8 {
        // SAFETY: one octet, which lives as long as the calls. The library does not see the connector's.
        unsafe {
            let (fd, mut octet) = (p.connector as usize, 0u8);
            let place = std::ptr::from_mut(&mut octet) as usize;
            enter(libc::SYS_write, [fd, place, 1]);
            recv(p.acceptor, 1, 0);
            send(p.acceptor, b"x", 0);
            enter(libc::SYS_read, [fd, place, 1]);
        }
    }
    note("thread", thread.join().is_ok());
    p.close();
}

/// Makes a system call fail with EPERM from now on, always or with a first argument.
fn forbid(call: c_long, argument: Option<c_int>) {
    let conditions: Vec<Condition> = argument.map(|value| Condition::Equals(0, value)).into_iter().collect();
    fail(call, &conditions, libc::EPERM);
}

/// A condition of an argument of a system call, which is named by its place.
pub enum Condition {
    Equals(usize, c_int),
    AtLeast(usize, c_int),
}

/// Makes a system call of this thread, and of those that it makes, fail from now on if all conditions hold.
pub fn fail(call: c_long, conditions: &[Condition], error: c_int) {
    let load = |offset: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32);
    let answer = |value: u32| statement(libc::BPF_RET | libc::BPF_K, value);
    // Each test of `kind` that fails skips the rest.
    let unless = |kind: u32, value: u32, skip: usize| sock_filter {
        jf: skip as u8,
        ..statement(libc::BPF_JMP | kind | libc::BPF_K, value)
    };
    let mut skip = 2 * conditions.len() + 1;
    let mut filter = vec![load(offset_of!(libc::seccomp_data, nr)), unless(libc::BPF_JEQ, call as u32, skip)];
    for condition in conditions {
        let (kind, place, value) = match *condition {
            Condition::Equals(place, value) => (libc::BPF_JEQ, place, value),
            Condition::AtLeast(place, value) => (libc::BPF_JGE, place, value),
        };
        skip -= 2;
        filter.push(load(offset_of!(libc::seccomp_data, args) + 8 * place));
        filter.push(unless(kind, value as u32, skip));
    }
    filter.push(answer(libc::SECCOMP_RET_ERRNO | error as u32));
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives as long as the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0, "{}", name(errno()));
    }
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

pub fn without_memfd() {
    forbid(libc::SYS_memfd_create, None);
    converse();
}

pub fn without_eventfd() {
    forbid(libc::SYS_eventfd2, None);
    converse();
}

pub fn without_netlink() {
    forbid(libc::SYS_socket, Some(AF_NETLINK));
    converse();
}

pub fn without_unix_sockets() {
    forbid(libc::SYS_socket, Some(AF_UNIX));
    converse();
}

/// Uses a connection in several ways, with waits.
fn converse() {
    let p = pair();
    let e = epoll();
    add(e, p.acceptor, libc::EPOLLIN, 1);
    for _ in 0..2 {
        let later = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            send(p.connector, b"request", 0)
        });
        note("readable", wait(e, 8, 5000));
        note("recv", recv(p.acceptor, 9, 0));
        note("sent", later.join().unwrap());
    }
    let later = std::thread::spawn(move || recv(p.connector, 9, 0));
    std::thread::sleep(std::time::Duration::from_millis(20));
    send(p.acceptor, b"reply", 0);
    note("reply", later.join().unwrap());
    p.close();
    close(e);
}

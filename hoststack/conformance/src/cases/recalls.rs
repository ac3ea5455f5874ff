// SPDX-License-Identifier: Apache-2.0

//! Connections that go to another program with octets that were not read: the peer sends them by the kernel's
//! connection. Where it cannot, the call is refused in time, and the octets stay.

use super::bulk::Sequence;
use super::copies::{pass_descriptor, receive_descriptor};
use super::hostile::mappings;
use crate::sys::*;
use beeline_ring::{Answer, Header, Recall, Role};
use libc::{c_int, MSG_DONTWAIT};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PASSES: u64 = 10_000;

/// A peer that sends requests without waiting for replies, as clients of IMAP do, and then waits for one. Whoever gets
/// the connection sees all that the former owner has not read, in order.
pub fn passed_unread() {
    let (here, there) = UnixStream::pair().unwrap();
    let (connections, to_serve) = std::sync::mpsc::channel::<(c_int, Vec<u8>)>();
    let peer = std::thread::spawn(move || {
        for (fd, octets) in to_serve {
            let (now, later) = octets.split_at(octets.len() - 10);
            for piece in now.chunks(1 + now.len() / 8) {
                assert_eq!(send(fd, piece, 0), piece.len() as isize);
            }
            assert_eq!(recv(fd, 1, 0), "1 r");
            assert_eq!(send(fd, later, 0), 10);
            assert_eq!(recv(fd, 1, 0), "0 ");
            close(fd);
        }
    });
    // Ports of listeners would be searched for among those of all former connections.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sum = 0u64;
    for pass in 1..=PASSES {
        let mut draw = Sequence::new(pass);
        let length = 20 + draw.next() as usize % 3000;
        let read_before = draw.next() as usize % (length - 10);
        let octets: Vec<u8> = (0..length).map(|_| draw.next() as u8).collect();
        let p = accept_from(&listener, None);
        warm_up(p);
        connections.send((p.connector, octets.clone())).unwrap();
        let mut received = receive(p.acceptor, read_before);
        assert_eq!(pass_descriptor(here.as_raw_fd(), p.acceptor), "1", "pass {pass}");
        close(p.acceptor);
        let fd = receive_descriptor(there.as_raw_fd());
        received.extend(receive(fd, length - 10 - read_before));
        assert_eq!(send(fd, b"r", 0), 1);
        received.extend(receive(fd, 10));
        assert!(received == octets, "pass {pass}");
        sum += received.iter().map(|&octet| u64::from(octet)).sum::<u64>();
        close(fd);
    }
    drop(connections);
    peer.join().unwrap();
    note("sum", sum);
}

fn receive(fd: c_int, count: usize) -> Vec<u8> {
    let mut octets = vec![0; count];
    let mut received = 0;
    while received < count {
        // SAFETY: the buffer has so many octets left.
        let n = unsafe { libc::recv(fd, octets[received..].as_mut_ptr().cast(), count - received, 0) };
        assert!(n > 0, "{}", outcome(n));
        received += n as usize;
    }
    octets
}

const LINES: &[u8] = b"first\nsecond\nthird\n";
const SCRIPT: &str = "read -r a; read -r b; read -r c; echo $c $b $a";

/// The program that inherits the connection reads what was sent to this one: after fork and exec, and after vfork.
pub fn executed_unread() {
    for spawns in [false, true] {
        for epolls in [false, true] {
            let p = pair();
            send(p.connector, LINES, 0);
            let peer = std::thread::spawn(move || {
                let e = epoll();
                add(e, p.connector, libc::EPOLLIN, 1);
                let readable = if epolls { wait(e, 8, 10_000) } else { poll(p.connector, libc::POLLIN, 10_000) };
                close(e);
                readable + " " + recv(p.connector, 40, 0).trim_end()
            });
            std::thread::sleep(Duration::from_millis(20));
            let end = if spawns { spawn(p.acceptor) } else { execute(p) };
            note("child", end);
            note("answer", peer.join().unwrap());
            p.close();
        }
    }
}

fn spawn(fd: c_int) -> String {
    // SAFETY: copies of the descriptor are owned by the command.
    let copy = || Stdio::from(unsafe { OwnedFd::from_raw_fd(libc::dup(fd)) });
    let status = Command::new("sh").args(["-c", SCRIPT]).stdin(copy()).stdout(copy()).status();
    format!("exit {}", status.expect("sh").code().unwrap_or(-1))
}

/// Runs in a process without the other end, which alone can send what was not read.
fn execute(p: Pair) -> String {
    let script = std::ffi::CString::new(SCRIPT).unwrap();
    end_of(in_child(|| {
        close(p.connector);
        let words = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
        // SAFETY: copies of a descriptor; the list ends with a null pointer.
        unsafe {
            libc::dup2(p.acceptor, 0);
            libc::dup2(p.acceptor, 1);
            libc::execv(c"/bin/sh".as_ptr(), words.as_ptr());
            libc::_exit(100 + errno());
        }
    }))
}

/// Both ends are in one thread, which is in fdopen when the other end has to send.
pub fn streams_unread() {
    let p = pair();
    send(p.connector, b"a line\nanother\n", 0);
    // SAFETY: the stream owns the descriptor; the buffer is this function's.
    unsafe {
        let stream = libc::fdopen(p.acceptor, c"r+".as_ptr());
        assert!(!stream.is_null(), "{}", name(errno()));
        for _ in 0..2 {
            let mut line = [0; 20];
            libc::fgets(line.as_mut_ptr(), 20, stream);
            note("line", CStr::from_ptr(line.as_ptr()).to_string_lossy().trim_end());
        }
        send(p.connector, b"a third\n", 0);
        let mut line = [0; 20];
        libc::fgets(line.as_mut_ptr(), 20, stream);
        note("line", CStr::from_ptr(line.as_ptr()).to_string_lossy().trim_end());
        libc::fclose(stream);
    }
    close(p.connector);
}

/// Passes a connection that cannot be passed on rings. It takes no longer than it may.
fn refused(fd: c_int) {
    let (here, there) = UnixStream::pair().unwrap();
    let begun = Instant::now();
    let result = pass_descriptor(here.as_raw_fd(), fd);
    let time = begun.elapsed();
    assert!(time < Duration::from_millis(400), "{time:?}");
    match counters() {
        Some(_) => assert_eq!(result, "EBUSY"),
        None => close(receive_descriptor(there.as_raw_fd())),
    }
}

/// Runs `f` in a child that has the connector alone.
fn in_peer(p: Pair, f: impl FnOnce()) -> c_int {
    let child = in_child(|| {
        close(p.acceptor);
        f();
    });
    close(p.connector);
    child
}

fn stop() {
    // SAFETY: a signal to this process.
    unsafe { libc::raise(libc::SIGSTOP) };
}

fn signal(child: c_int, signal: c_int) {
    // SAFETY: a signal to this process's child.
    unsafe { libc::kill(child, signal) };
}

fn wait_for_stop(child: c_int) {
    let mut status = 0;
    // SAFETY: waitpid stores a number.
    unsafe { libc::waitpid(child, &mut status, libc::WUNTRACED) };
    assert!(libc::WIFSTOPPED(status));
}

/// A peer that is stopped cannot send. It goes on as if nothing had been asked.
pub fn peer_stopped() {
    let p = pair();
    let child = in_peer(p, || {
        send(p.connector, b"unread, ", 0);
        stop();
        send(p.connector, b"more", 0);
        note("reply", recv(p.connector, 20, 0));
    });
    wait_for_stop(child);
    refused(p.acceptor);
    refused(p.acceptor);
    note("recv", recv(p.acceptor, 3, 0));
    signal(child, libc::SIGCONT);
    note("recv", String::from_utf8_lossy(&receive(p.acceptor, 9)));
    send(p.acceptor, b"reply", 0);
    note("peer", end_of(child));
    note("end", recv(p.acceptor, 20, 0));
    close(p.acceptor);
}

pub fn peer_dead() {
    let p = pair();
    let child = in_peer(p, || {
        send(p.connector, b"unread", 0);
        stop();
    });
    wait_for_stop(child);
    signal(child, libc::SIGKILL);
    note("peer", end_of(child));
    refused(p.acceptor);
    note("recv", recv(p.acceptor, 20, 0));
    note("end", recv(p.acceptor, 20, 0));
    close(p.acceptor);
}

/// The kernel's connection has no room for all that the ring has.
pub fn peer_without_room() {
    const COUNT: usize = 60_000;
    let p = fresh_with(4096);
    warm_up(p);
    let octets: Vec<u8> = (0..COUNT).map(|i| (i / 7) as u8).collect();
    let sent = send(p.connector, &octets, MSG_DONTWAIT) as usize;
    let peer = std::thread::spawn(move || recv(p.connector, 1, 0));
    std::thread::sleep(Duration::from_millis(20));
    refused(p.acceptor);
    assert!(receive(p.acceptor, sent) == octets[..sent]);
    note("recv", recv(p.acceptor, 1, MSG_DONTWAIT));
    send(p.acceptor, b"r", 0);
    note("peer", peer.join().unwrap());
    send(p.connector, b"after it", 0);
    note("recv", recv(p.acceptor, 20, 0));
    p.close();
}

/// Returns the recall of what the connector sends on the only connection on rings of this process.
fn recall() -> Option<&'static Recall> {
    let at = *mappings().first()?;
    // SAFETY: the rings' mapping begins with a header, and stays as long as the case.
    unsafe { (*(at as *const Header)).recall(Role::Connector) }
}

fn write_raw(fd: c_int, octets: &[u8]) {
    // SAFETY: the octets live as long as the call, which the library does not see.
    let n = unsafe { enter(libc::SYS_write, [fd as usize, octets.as_ptr() as usize, octets.len()]) };
    assert_eq!(n as usize, octets.len());
}

/// Returns a peer that is stopped when it has sent a part, as if it had been so within the library's call.
fn peer_in_part(p: Pair, octets: &'static [u8], part: usize, rest: impl FnOnce(&Recall, u64)) -> c_int {
    in_peer(p, || {
        assert_eq!(send(p.connector, octets, 0), octets.len() as isize);
        stop();
        if let Some(recall) = recall() {
            while !recall.take() {
                std::thread::yield_now();
            }
            write_raw(p.connector, &octets[..part]);
            stop();
            rest(recall, WARM + octets.len() as u64);
        } else {
            stop();
        }
    })
}

/// Octets that warm_up sends by the ring at most: the index that the peer answers has to be that or more.
const WARM: u64 = 1000;
const OCTETS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// A peer that has begun to send, and is stopped then: the octets that it has sent are not received twice, and those
/// that it sends later are not lost.
pub fn recalled_in_part() {
    let p = pair();
    let child = peer_in_part(p, OCTETS, 10, move |recall, index| {
        write_raw(p.connector, &OCTETS[10..]);
        recall.done(index);
    });
    wait_for_stop(child);
    let asked = std::thread::spawn(move || refused(p.acceptor));
    signal(child, libc::SIGCONT);
    asked.join().unwrap();
    wait_for_stop(child);
    note("recv", recv(p.acceptor, 10, 0));
    let later = std::thread::spawn(move || receive(p.acceptor, OCTETS.len() - 10));
    std::thread::sleep(Duration::from_millis(30));
    signal(child, libc::SIGCONT);
    note("recv", String::from_utf8_lossy(&later.join().unwrap()));
    note("peer", end_of(child));
    note("end", recv(p.acceptor, 20, 0));
    close(p.acceptor);
}

/// The same, but the peer is killed: what it has not sent is in the ring.
pub fn recalled_and_killed() {
    let p = pair();
    let child = peer_in_part(p, OCTETS, 10, |_, _| {});
    wait_for_stop(child);
    let asked = std::thread::spawn(move || refused(p.acceptor));
    signal(child, libc::SIGCONT);
    asked.join().unwrap();
    wait_for_stop(child);
    signal(child, libc::SIGKILL);
    note("peer", end_of(child));
    note("recv", String::from_utf8_lossy(&receive(p.acceptor, OCTETS.len())));
    note("end", recv(p.acceptor, 20, 0));
    assert!(counters().is_none() || recall().is_some_and(|recall| recall.answer() == Answer::Taken));
    close(p.acceptor);
}

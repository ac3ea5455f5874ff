// SPDX-License-Identifier: Apache-2.0

//! Descriptors that are copied, inherited, passed and closed.

use crate::sys::*;
use libc::{c_int, POLLIN};
use std::os::fd::{AsRawFd, IntoRawFd};

pub fn duplicates() {
    let p = pair();
    // SAFETY: copies of descriptors.
    let copies = unsafe {
        let target = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
        [
            libc::dup(p.acceptor),
            libc::dup2(p.acceptor, target),
            libc::dup3(p.acceptor, target + 20, libc::O_CLOEXEC),
            libc::fcntl(p.acceptor, libc::F_DUPFD_CLOEXEC, 100),
        ]
    };
    note("numbers ascend", copies.is_sorted());
    close(p.acceptor);
    for copy in copies {
        send(p.connector, b"to a copy", 0);
        note("recv", recv(copy, 20, 0));
        send(copy, b"from a copy", 0);
        note("recv", recv(p.connector, 20, 0));
    }
    for copy in copies {
        note("poll of the peer", poll(p.connector, POLLIN, 0));
        close(copy);
    }
    note("poll after the last", poll(p.connector, POLLIN, 1000));
    note("recv", recv(p.connector, 20, 0));
    note("recv of a closed one", recv(copies[0], 20, 0));
    close(p.connector);
}

/// Parent and child use the same connection in turn.
pub fn forked() {
    let p = pair();
    let child = in_child(|| {
        note("child", recv(p.acceptor, 20, 0));
        send(p.acceptor, b"from the child", 0);
        note("child", recv(p.acceptor, 20, 0));
    });
    send(p.connector, b"to the child", 0);
    note("parent", recv(p.connector, 20, 0));
    send(p.connector, b"again", 0);
    note("end", end_of(child));
    send(p.acceptor, b"from the parent", 0);
    note("parent", recv(p.connector, 20, 0));
    send(p.connector, b"to the parent", 0);
    note("parent", recv(p.acceptor, 20, 0));
    close(p.acceptor);
    note("end of the connection", recv(p.connector, 20, 0));
    close(p.connector);
}

/// A child that is killed in the middle of its calls does not hold up the parent.
pub fn forked_and_killed() {
    let p = pair();
    for _ in 0..20 {
        let child = in_child(|| loop {
            send(p.acceptor, b"x", 0);
        });
        for _ in 0..1000 {
            recv(p.connector, 1000, 0);
        }
        // SAFETY: kill of this process's child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        note("child", end_of(child));
        send(p.acceptor, b"\n", 0);
        while !recv(p.connector, 39, 0).ends_with('\n') {}
    }
    p.close();
}

/// A child that ends without closing leaves the parent with the last descriptor: what that has not read is lost when
/// it closes, and the peer gets the end.
pub fn forked_and_ended() {
    let p = pair();
    let child = in_child(|| note("child", recv(p.acceptor, 20, 0)));
    send(p.connector, b"to the child", 0);
    note("child", end_of(child));
    send(p.connector, b"to nobody", 0);
    close(p.acceptor);
    note("end of the connection", recv(p.connector, 20, 0));
    close(p.connector);
}

/// A child's descriptors are closed in one call, also those that the library has.
pub fn closed_ranges() {
    let (p, q) = (pair(), pair());
    let child = in_child(|| {
        // SAFETY: closes descriptors by number.
        note("child", outcome(unsafe { libc::close_range(3, u32::MAX, 0) } as isize));
        note("child", recv(p.acceptor, 20, libc::MSG_DONTWAIT));
    });
    note("end", end_of(child));
    send(q.connector, b"as before", 0);
    note("parent", recv(q.acceptor, 20, 0));
    // SAFETY: as above.
    note("parent", outcome(unsafe { libc::close_range(p.acceptor as u32, p.acceptor as u32, 0) } as isize));
    note("end of the connection", recv(p.connector, 20, 0));
    close(p.connector);
    for fd in 3..2000 {
        if fd != q.acceptor && fd != q.connector {
            close(fd);
        }
    }
    send(q.connector, b"survives", 0);
    note("after closing all others", recv(q.acceptor, 20, 0));
    note("recv of nothing", recv(q.acceptor, 20, libc::MSG_DONTWAIT));
    q.close();
}

/// A program that lists its own descriptors finds those that it has opened, also in a child.
pub fn listed() {
    let (p, q) = (pair(), pair());
    let list = || {
        for folder in ["/proc/self/fd", "/proc/self/fdinfo", "/proc/thread-self/fd"] {
            note(folder, numbers_in(folder));
        }
        note("of the process", numbers_in(&format!("/proc/{}/fd", std::process::id())));
        note("by getdents64", numbers_by_call());
        note("open", numbers_open());
        note("another folder", numbers_of_files());
    };
    list();
    note("child", end_of(in_child(list)));
    send(p.connector, b"as before", 0);
    note("recv", recv(p.acceptor, 20, 0));
    p.close();
    q.close();
    list();
}

fn numbers_in(folder: &str) -> String {
    let entries = std::fs::read_dir(folder).expect("read_dir");
    sorted(entries.filter_map(|entry| entry.expect("entry").file_name().to_str()?.parse().ok()))
}

/// Reads the list as CPython's children do, with room for few entries at a time.
fn numbers_by_call() -> String {
    let folder = std::fs::File::open("/proc/self/fd").expect("open");
    let mut numbers = Vec::new();
    let mut entries = [0u8; 64];
    loop {
        let place = entries.as_mut_ptr();
        // SAFETY: the list has that many octets.
        let n = unsafe { libc::syscall(libc::SYS_getdents64, folder.as_raw_fd(), place, entries.len()) };
        let Ok(n @ 1..) = usize::try_from(n) else { break };
        let mut rest = &entries[..n];
        while !rest.is_empty() {
            // The number of the file, an offset, the length of the entry, its kind, and its name.
            let (entry, others) = rest.split_at(u16::from_ne_bytes([rest[16], rest[17]]).into());
            let name = entry[19..].split(|&octet| octet == 0).next().unwrap_or_default();
            numbers.extend(String::from_utf8_lossy(name).parse::<c_int>());
            rest = others;
        }
    }
    sorted(numbers.into_iter())
}

/// Lists a folder whose names are numbers that the library uses itself.
fn numbers_of_files() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is this function's.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let folder = std::env::temp_dir().join(format!("beeline-listed-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("create_dir");
    for number in (limit.rlim_cur / 2..).take(20) {
        std::fs::write(folder.join(number.to_string()), "").expect("write");
    }
    let found = numbers_in(folder.to_str().expect("a path"));
    std::fs::remove_dir_all(&folder).expect("remove_dir_all");
    found
}

/// Returns those that fcntl(2) knows.
fn numbers_open() -> String {
    // SAFETY: fcntl of a number.
    sorted((0..2000).filter(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0))
}

fn sorted(numbers: impl Iterator<Item = c_int>) -> String {
    let mut numbers: Vec<c_int> = numbers.collect();
    numbers.sort_unstable();
    format!("{numbers:?}")
}

/// Another program runs while connections with CLOEXEC are open.
pub fn executed() {
    let p = pair();
    let output = std::process::Command::new("echo").arg("executed").output().expect("echo");
    note("output", String::from_utf8_lossy(&output.stdout).trim_end());
    send(p.connector, b"after", 0);
    note("recv", recv(p.acceptor, 20, 0));
    p.close();
}

/// A connection that a child inherits before it has rings, and has alone then.
pub fn forked_before_rings() {
    let p = fresh();
    let child = in_child(|| {
        close(p.connector);
        for _ in 0..20 {
            recv(p.acceptor, 1, 0);
            send(p.acceptor, b"r", 0);
        }
    });
    close(p.acceptor);
    for _ in 0..20 {
        send(p.connector, b"q", 0);
        note("reply", recv(p.connector, 1, 0));
    }
    note("child", end_of(child));
    note("end", recv(p.connector, 1, 0));
    close(p.connector);
}

/// A connection that is passed to another process before it has rings stays on the kernel.
pub fn passed_before_rings() {
    let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    let child = in_child(|| {
        let fd = receive_descriptor(there.as_raw_fd());
        for _ in 0..20 {
            recv(fd, 1, 0);
            send(fd, b"r", 0);
        }
    });
    drop(there);
    let p = fresh();
    note("sendmsg", pass_descriptor(here.as_raw_fd(), p.acceptor));
    close(p.acceptor);
    for _ in 0..20 {
        send(p.connector, b"q", 0);
        note("reply", recv(p.connector, 1, 0));
    }
    note("child", end_of(child));
    close(p.connector);
    close(here.into_raw_fd());
}

pub fn pass_descriptor(socket: c_int, fd: c_int) -> String {
    // SAFETY: the message lives as long as the call.
    pass(fd, |message| outcome(unsafe { libc::sendmsg(socket, message, 0) }))
}

/// Passes a descriptor by sendmmsg(2), whose first message carries nothing.
pub fn pass_in_list(socket: c_int, fd: c_int) -> String {
    pass(fd, |carrier| {
        // SAFETY: zero is a valid message without octets.
        let mut list: [libc::mmsghdr; 2] = unsafe { std::mem::zeroed() };
        list[1].msg_hdr = *carrier;
        // SAFETY: two messages.
        outcome(unsafe { libc::sendmmsg(socket, list.as_mut_ptr(), 2, 0) } as isize)
    })
}

fn pass(fd: c_int, send: impl Fn(&libc::msghdr) -> String) -> String {
    let mut octet = *b"!";
    let mut list = parts(&mut [&mut octet]);
    let mut control = [0u64; 4];
    let mut message = message(&mut list);
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the control buffer has room for one descriptor.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<c_int>().write(fd);
    }
    send(&message)
}

pub fn receive_descriptor(socket: c_int) -> c_int {
    let mut octet = [0u8];
    let mut list = parts(&mut [&mut octet]);
    let mut control = [0u64; 4];
    let mut message = message(&mut list);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = 32;
    // SAFETY: the kernel fills the control buffer with one descriptor.
    unsafe {
        libc::recvmsg(socket, &mut message, 0);
        libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&message)).cast::<c_int>().read()
    }
}

/// A program that answers by printf(3), as one that inetd starts.
pub fn standard_output() {
    let p = pair();
    let child = in_child(|| {
        // SAFETY: dup2 of a descriptor; a text that ends with a zero octet; all streams.
        unsafe {
            libc::dup2(p.connector, 1);
            libc::puts(c"from the C library".as_ptr());
            libc::fflush(std::ptr::null_mut());
        }
    });
    note("child", end_of(child));
    note("octets", recv(p.acceptor, 40, 0));
    note("answer", send(p.acceptor, b"answer", 0));
    note("octets", recv(p.connector, 40, 0));
    p.close();
}

// SPDX-License-Identifier: Apache-2.0

//! The servers: one with epoll, and one that forks for each connection. A request is a number of octets, and a command.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};

pub const REQUEST: usize = 8;

/// The command that kills the process that has the connection.
pub const DIE: u32 = 1;

pub const LARGEST: usize = 1 << 20;

pub fn request(octets: u32, command: u32) -> [u8; REQUEST] {
    let mut request = [0; REQUEST];
    request[..4].copy_from_slice(&octets.to_le_bytes());
    request[4..].copy_from_slice(&command.to_le_bytes());
    request
}

fn parse(request: [u8; REQUEST]) -> (usize, u32) {
    let word = |i: usize| u32::from_le_bytes([request[i], request[i + 1], request[i + 2], request[i + 3]]);
    (word(0) as usize, word(4))
}

/// Returns what all replies begin with: no octet is where another one of the same value may be by mistake.
pub fn reply() -> Vec<u8> {
    (0..LARGEST).map(|i| (i % 251) as u8).collect()
}

fn adopt(listener: i32) -> TcpListener {
    // SAFETY: the process that started this one has left it the descriptor.
    unsafe { TcpListener::from_raw_fd(listener) }
}

/// One connection of the server with epoll.
struct Exchange {
    stream: TcpStream,
    request: [u8; REQUEST],
    received: usize,
    /// What is to be sent of the reply.
    next: usize,
    end: usize,
}

impl Exchange {
    /// Receives and sends what it can; false at the end of the connection.
    fn go_on(&mut self, reply: &[u8]) -> io::Result<bool> {
        loop {
            while self.next < self.end {
                self.next += self.stream.write(&reply[self.next..self.end])?;
            }
            let n = self.stream.read(&mut self.request[self.received..])?;
            self.received += n;
            if n == 0 {
                return Ok(false);
            }
            if self.received == REQUEST {
                (self.received, self.next, self.end) = (0, 0, parse(self.request).0.min(LARGEST));
            }
        }
    }
}

pub fn serve(listener: i32) -> io::Result<()> {
    let (listener, reply, mut exchanges) = (adopt(listener), reply(), HashMap::new());
    // SAFETY: no preconditions.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let add = |fd: i32, events: i32| {
        let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
        // SAFETY: the event is this function's.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) }
    };
    add(listener.as_raw_fd(), libc::EPOLLIN);
    loop {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the list has that many places.
        let n = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), 64, -1) };
        for event in &events[..n.max(0) as usize] {
            let fd = event.u64 as i32;
            if fd == listener.as_raw_fd() {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                add(stream.as_raw_fd(), libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET);
                let new = Exchange { stream, request: [0; REQUEST], received: 0, next: 0, end: 0 };
                exchanges.insert(new.stream.as_raw_fd(), new);
                continue;
            }
            let ends = exchanges.get_mut(&fd).is_some_and(|exchange| match exchange.go_on(&reply) {
                Ok(goes_on) => !goes_on,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            });
            if ends {
                exchanges.remove(&fd);
            }
        }
    }
}

pub fn serve_forked(listener: i32) -> io::Result<()> {
    let (listener, reply) = (adopt(listener), reply());
    // SAFETY: the kernel takes the children that end.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    loop {
        let (stream, _) = listener.accept()?;
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            0 => {
                drop(listener);
                serve_one(stream, &reply);
                std::process::exit(0);
            }
            -1 => return Err(io::Error::last_os_error()),
            _ => {}
        }
    }
}

fn serve_one(mut stream: TcpStream, reply: &[u8]) {
    let mut request = [0; REQUEST];
    while stream.read_exact(&mut request).is_ok() {
        let (octets, command) = parse(request);
        if command == DIE {
            // SAFETY: a signal to this process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        if stream.write_all(&reply[..octets.min(LARGEST)]).is_err() {
            return;
        }
    }
}

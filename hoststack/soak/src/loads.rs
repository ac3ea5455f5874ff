// SPDX-License-Identifier: Apache-2.0

//! The loads, each a client of one thread. They leave time to other programs, so that a mix can run for an hour.

use super::servers::{reply, request, DIE, LARGEST};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const NAMES: &[&str] = &["short", "long", "bulk", "forked", "killed"];

/// Octets of a small reply.
const SMALL: usize = 64;

type Run = fn(&Load, &mut Client) -> io::Result<u64>;

pub struct Load {
    pub server: SocketAddr,
    pub forked: SocketAddr,
    /// Short connections per second.
    pub rate: u32,
    pub run: Run,
}

pub fn find(name: &str) -> Option<Run> {
    let all: [Run; 5] = [short, long, bulk, forked, killed];
    NAMES.iter().position(|known| *known == name).map(|i| all[i])
}

/// What replies are compared with, and where they are received.
pub struct Client {
    expected: Vec<u8>,
    buffer: Vec<u8>,
}

impl Client {
    pub fn new() -> Self {
        Self { expected: reply(), buffer: reply() }
    }

    fn receive(&mut self, stream: &mut TcpStream, octets: usize) -> io::Result<()> {
        stream.read_exact(&mut self.buffer[..octets])?;
        match self.buffer[..octets] == self.expected[..octets] {
            true => Ok(()),
            false => Err(io::Error::other("a reply is not what the server has sent")),
        }
    }

    fn exchange(&mut self, stream: &mut TcpStream, octets: usize) -> io::Result<()> {
        stream.write_all(&request(octets as u32, 0))?;
        self.receive(stream, octets)
    }
}

impl Load {
    /// Makes the load run for some time, and returns how many connections it had.
    pub fn drive(&self, client: &mut Client, time: Duration) -> io::Result<u64> {
        let (end, mut connections) = (Instant::now() + time, 0);
        while Instant::now() < end {
            connections += (self.run)(self, client)?;
        }
        Ok(connections)
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// One request on each connection: as many as a tenth of a second has at the load's rate.
fn short(load: &Load, client: &mut Client) -> io::Result<u64> {
    let (count, begun) = ((load.rate / 10).max(1), Instant::now());
    for i in 0..count {
        client.exchange(&mut connect(load.server)?, SMALL)?;
        let due = Duration::from_millis(100) * (i + 1) / count;
        if let Some(early) = due.checked_sub(begun.elapsed()).filter(|early| early.as_millis() > 0) {
            sleep(early);
        }
    }
    Ok(count.into())
}

/// Small requests on some connections at once, for longer than a moment.
fn long(load: &Load, client: &mut Client) -> io::Result<u64> {
    let mut streams = (0..16).map(|_| connect(load.server)).collect::<io::Result<Vec<_>>>()?;
    for _ in 0..400 {
        streams.iter_mut().try_for_each(|stream| stream.write_all(&request(SMALL as u32, 0)))?;
        streams.iter_mut().try_for_each(|stream| client.receive(stream, SMALL))?;
        sleep(Duration::from_millis(1));
    }
    Ok(streams.len() as u64)
}

fn bulk(load: &Load, client: &mut Client) -> io::Result<u64> {
    let mut stream = connect(load.server)?;
    for _ in 0..20 {
        client.exchange(&mut stream, LARGEST)?;
        sleep(Duration::from_millis(10));
    }
    Ok(1)
}

/// A connection of the server that forks, and another one whose process is killed.
fn forked(load: &Load, client: &mut Client) -> io::Result<u64> {
    for dies in [false, true] {
        let mut stream = connect(load.forked)?;
        for _ in 0..60 {
            client.exchange(&mut stream, SMALL)?;
            sleep(Duration::from_millis(1));
        }
        if dies {
            stream.write_all(&request(0, DIE))?;
            if client.receive(&mut stream, 1).is_ok() {
                return Err(io::Error::other("a process that was killed has replied"));
            }
        }
    }
    Ok(2)
}

/// A process that is killed while it has connections on rings.
fn killed(load: &Load, client: &mut Client) -> io::Result<u64> {
    const CONNECTIONS: u64 = 4;
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut endless = || -> io::Result<()> {
            let mut streams = (0..CONNECTIONS).map(|_| connect(load.server)).collect::<io::Result<Vec<_>>>()?;
            loop {
                for stream in &mut streams {
                    client.exchange(stream, SMALL)?;
                }
                sleep(Duration::from_micros(500));
            }
        };
        std::process::exit(i32::from(endless().is_err()));
    }
    sleep(Duration::from_millis(150));
    // SAFETY: of this process's child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    let mut status = 0;
    // SAFETY: waits for this process's child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    match libc::WIFSIGNALED(status) {
        true => Ok(CONNECTIONS),
        false => Err(io::Error::other("a process that was to be killed has failed before")),
    }
}

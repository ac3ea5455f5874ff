// SPDX-License-Identifier: Apache-2.0

//! Small requests with replies of one size, by a client with blocking calls: a connection for each request, or one for
//! all. The server is a process of its own with epoll, which may have another `LD_PRELOAD` than the client.

use super::{cpu_of, pin, Measured, Options, Poller, LISTENER};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::Command;
use std::time::{Duration, Instant};

/// Which connections are used.
#[derive(Clone, Copy, PartialEq)]
pub enum Use {
    /// One for each request.
    Once,
    /// The same for all requests.
    Again,
}

/// Starts the server as another program, measures, and ends the server.
pub fn run(options: &Options, usage: Use) -> io::Result<Measured> {
    let listener = TcpListener::bind(options.address)?;
    let address = listener.local_addr()?;
    // SAFETY: fcntl of a descriptor: the server inherits it.
    unsafe { libc::fcntl(listener.as_raw_fd(), libc::F_SETFD, 0) };
    let mut command = Command::new("/proc/self/exe");
    command.args(["--listener", &listener.as_raw_fd().to_string(), "--bytes", &options.bytes.to_string()]);
    command.args(["--reply", &options.reply.to_string()]);
    if let Some((client, server)) = options.cpus {
        command.args(["--cpus", &format!("{client},{server}")]);
    }
    if let Some(library) = &options.server_preload {
        command.env("LD_PRELOAD", library);
    }
    let mut server = command.spawn()?;
    drop(listener);
    let result = options
        .cpus
        .map_or(Ok(()), |(cpu, _)| pin(cpu))
        .and_then(|()| Client { address, options, usage, server: server.id() as i32 }.drive());
    server.kill()?;
    server.wait()?;
    result
}

struct Client<'a> {
    address: SocketAddr,
    options: &'a Options,
    usage: Use,
    server: i32,
}

impl Client<'_> {
    fn drive(&self) -> io::Result<Measured> {
        let mut stream = self.warm_up()?;
        // SAFETY: getpid has no preconditions.
        let own = unsafe { libc::getpid() };
        let before = (cpu_of(own)?, cpu_of(self.server)?);
        let mut times = Vec::new();
        let end = Instant::now() + Duration::from_secs_f64(self.options.seconds);
        while Instant::now() < end {
            let begun = Instant::now();
            self.request(&mut stream)?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        Ok(Measured { times, client: cpu_of(own)? - before.0, server: cpu_of(self.server)? - before.1 })
    }

    /// Makes requests for 200 ms, and until a connection that is used again is on rings, if it can be.
    fn warm_up(&self) -> io::Result<Option<TcpStream>> {
        let (mut stream, begun) = (None, Instant::now());
        let both = self.options.server_preload.as_ref().is_none_or(|library| !library.is_empty());
        let waits = || self.usage == Use::Again && both && beeline_counters::attached() == Some(0);
        while begun.elapsed() < Duration::from_millis(200) || waits() && begun.elapsed() < Duration::from_secs(10) {
            self.request(&mut stream)?;
        }
        Ok(stream)
    }

    /// Sends a request and receives its reply, by the stream that is kept if there is one.
    fn request(&self, kept: &mut Option<TcpStream>) -> io::Result<()> {
        let mut stream = kept.take().map_or_else(|| TcpStream::connect(self.address), Ok)?;
        stream.write_all(&vec![b'q'; self.options.bytes])?;
        let (mut buffer, mut received) = (vec![0; self.options.reply.min(1 << 16)], 0);
        while received < self.options.reply {
            match stream.read(&mut buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => received += n,
            }
        }
        if self.usage == Use::Again {
            *kept = Some(stream);
        }
        Ok(())
    }
}

/// One connection of the server.
struct Exchange {
    stream: TcpStream,
    /// Octets of the request that have come, and of the reply that are to be sent.
    received: usize,
    left: usize,
}

/// Answers on all connections, until it is killed.
pub fn serve(listener: i32, options: &Options) -> io::Result<()> {
    options.cpus.map_or(Ok(()), |(_, cpu)| pin(cpu))?;
    // SAFETY: the process that started this one has left it the descriptor.
    let listener = unsafe { TcpListener::from_raw_fd(listener) };
    let poller = Poller::new()?;
    poller.add(&listener, LISTENER)?;
    let mut exchanges = HashMap::new();
    let reply = vec![b'r'; options.reply];
    loop {
        poller.wait(|data| {
            if data == LISTENER {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                poller.add(&stream, stream.as_raw_fd() as u64)?;
                exchanges.insert(stream.as_raw_fd() as u64, Exchange { stream, received: 0, left: 0 });
                return Ok(());
            }
            let Some(exchange) = exchanges.get_mut(&data) else { return Ok(()) };
            if !exchange.go_on(options.bytes, &reply, &poller)? {
                exchanges.remove(&data);
            }
            Ok(())
        })?;
    }
}

impl Exchange {
    /// Receives and sends what it can; false at the end of the connection.
    fn go_on(&mut self, request: usize, reply: &[u8], poller: &Poller) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(n) => self.received += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error),
        }
        if self.received == request {
            (self.received, self.left) = (0, reply.len());
        }
        let had = self.left;
        while self.left > 0 {
            match self.stream.write(&reply[reply.len() - self.left..]) {
                Ok(n) => self.left -= n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poller.change(&self.stream, libc::EPOLLIN | libc::EPOLLOUT)?;
                    return Ok(true);
                }
                Err(error) => return Err(error),
            }
        }
        if had > 0 && had < reply.len() {
            poller.change(&self.stream, libc::EPOLLIN)?;
        }
        Ok(true)
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Request and reply of one size over some TCP connections between two processes, each with one thread and epoll.
//!
//! `beeline-pingpong --address 127.0.0.1:0 --connections 64 --seconds 2 --bytes 64 --cpus 0,1` prints
//! one line of JSON: connections of the client on rings, replies, times of a round in microseconds, and the CPU time of
//! both processes for each.
//!
//! With `--reply 65536` requests have replies of that size, by blocking calls: all on one connection, or with `--once`
//! on a connection for each. `--server-preload PATH` gives the server another `LD_PRELOAD` than the client has.

mod exchanges;

use exchanges::Use;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

struct Options {
    address: SocketAddr,
    connections: usize,
    seconds: f64,
    bytes: usize,
    /// CPUs of client and server; none leaves them to the scheduler.
    cpus: Option<(usize, usize)>,
    /// Octets of a reply; 0 has messages of `bytes` both ways.
    reply: usize,
    once: bool,
    server_preload: Option<String>,
    /// This process is the server, and has inherited the socket that listens.
    listener: Option<i32>,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            connections: 64,
            seconds: 1.0,
            bytes: 64,
            cpus: None,
            reply: 0,
            once: false,
            server_preload: None,
            listener: None,
        };
        while let Some(flag) = arguments.next() {
            if flag == "--once" {
                options.once = true;
                continue;
            }
            let value = arguments.next().ok_or(format!("{flag} needs a value"))?;
            let bad = |error: String| format!("{flag} {value}: {error}");
            match flag.as_str() {
                "--address" => options.address = value.parse().map_err(|e| bad(format!("{e}")))?,
                "--connections" => options.connections = value.parse().map_err(|e| bad(format!("{e}")))?,
                "--seconds" => options.seconds = value.parse().map_err(|e| bad(format!("{e}")))?,
                "--bytes" => options.bytes = value.parse().map_err(|e| bad(format!("{e}")))?,
                "--reply" => options.reply = value.parse().map_err(|e| bad(format!("{e}")))?,
                "--server-preload" => options.server_preload = Some(value),
                "--listener" => options.listener = Some(value.parse().map_err(|e| bad(format!("{e}")))?),
                "--cpus" => options.cpus = Some(pair(&value).ok_or_else(|| bad("write CLIENT,SERVER".into()))?),
                _ => return Err(format!("{flag} is not known")),
            }
        }
        Ok(options)
    }
}

fn pair(text: &str) -> Option<(usize, usize)> {
    let (client, server) = text.split_once(',')?;
    Some((client.parse().ok()?, server.parse().ok()?))
}

/// Keeps this process on one CPU.
fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: zero is a valid set, and the call only reads it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn main() -> ExitCode {
    let result = Options::read(std::env::args().skip(1)).and_then(|o| begin(&o).map_err(|e| e.to_string()));
    match result {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("beeline-pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

fn begin(options: &Options) -> io::Result<String> {
    if let Some(listener) = options.listener {
        return exchanges::serve(listener, options).map(|()| String::new());
    }
    let usage = if options.once { Use::Once } else { Use::Again };
    let measured = if options.reply > 0 { exchanges::run(options, usage)? } else { run(options)? };
    Ok(line(measured))
}

/// Forks the server, measures, and ends the server.
fn run(options: &Options) -> io::Result<Measured> {
    let listener = TcpListener::bind(options.address)?;
    let address = listener.local_addr()?;
    // SAFETY: this process has one thread.
    let server = unsafe { libc::fork() };
    if server == 0 {
        // It ends when the client closes, or kills it.
        let _ = options.cpus.map_or(Ok(()), |(_, cpu)| pin(cpu)).and_then(|()| serve(&listener, options.bytes));
        std::process::exit(0);
    }
    drop(listener);
    let result = options.cpus.map_or(Ok(()), |(cpu, _)| pin(cpu)).and_then(|()| drive(address, options, server));
    // SAFETY: the server is this process's child.
    unsafe { libc::kill(server, libc::SIGKILL) };
    // SAFETY: waits for this process's child.
    unsafe { libc::waitpid(server, std::ptr::null_mut(), 0) };
    result
}

/// An epoll instance.
struct Poller(i32);

impl Poller {
    fn new() -> io::Result<Self> {
        // SAFETY: no preconditions.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(fd))
    }

    fn add(&self, socket: &impl AsRawFd, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, libc::EPOLLIN, data)
    }

    /// Makes other events reported, with the socket's number as data.
    fn change(&self, socket: &impl AsRawFd, events: i32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, events, socket.as_raw_fd() as u64)
    }

    fn control(&self, operation: i32, socket: &impl AsRawFd, events: i32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: the event is this function's.
        match unsafe { libc::epoll_ctl(self.0, operation, socket.as_raw_fd(), &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Calls `f` with the data of each ready socket.
    fn wait(&self, mut f: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 256];
        // SAFETY: the list has that many places.
        let n = unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), events.len() as i32, 1000) };
        if n < 0 {
            // A process that was stopped and goes on has this error, too.
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        events[..n as usize].iter().try_for_each(|event| f(event.u64))
    }
}

const LISTENER: u64 = u64::MAX;

fn serve(listener: &TcpListener, bytes: usize) -> io::Result<()> {
    let poller = Poller::new()?;
    poller.add(listener, LISTENER)?;
    let mut streams: Vec<Conversation> = Vec::new();
    loop {
        poller.wait(|data| {
            if data == LISTENER {
                let (stream, _) = listener.accept()?;
                poller.add(&stream, streams.len() as u64)?;
                streams.push(Conversation::new(stream, bytes)?);
                return Ok(());
            }
            let conversation = &mut streams[data as usize];
            if conversation.receive()? {
                conversation.send()?;
            }
            Ok(())
        })?;
    }
}

/// One connection and its message, complete or in part.
struct Conversation {
    stream: TcpStream,
    message: Vec<u8>,
    received: usize,
    begun: Instant,
}

impl Conversation {
    fn new(stream: TcpStream, bytes: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, message: vec![b'x'; bytes], received: 0, begun: Instant::now() })
    }

    /// Returns whether the message is complete.
    fn receive(&mut self) -> io::Result<bool> {
        match self.stream.read(&mut self.message[self.received..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.received = (self.received + n) % self.message.len();
                Ok(self.received == 0)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a message; messages are smaller than any buffer that is empty.
    fn send(&mut self) -> io::Result<()> {
        self.begun = Instant::now();
        self.stream.write_all(&self.message)
    }
}

/// The time of each round, in microseconds, and the CPU time of both processes meanwhile.
struct Measured {
    times: Vec<f64>,
    client: Duration,
    server: Duration,
}

/// Keeps one request on each connection under way.
fn drive(address: SocketAddr, options: &Options, server: i32) -> io::Result<Measured> {
    let poller = Poller::new()?;
    let mut conversations = Vec::new();
    for i in 0..options.connections {
        let stream = TcpStream::connect(address)?;
        poller.add(&stream, i as u64)?;
        conversations.push(Conversation::new(stream, options.bytes)?);
    }
    conversations.iter_mut().try_for_each(Conversation::send)?;
    warm_up(&poller, &mut conversations)?;
    let mut times = Vec::new();
    // SAFETY: getpid has no preconditions.
    let own = unsafe { libc::getpid() };
    let before = (cpu_of(own)?, cpu_of(server)?);
    rounds(&poller, &mut conversations, Duration::from_secs_f64(options.seconds), &mut times)?;
    Ok(Measured { times, client: cpu_of(own)? - before.0, server: cpu_of(server)? - before.1 })
}

/// Makes rounds until each connection is on rings, if there is the preload library: on a busy machine that takes
/// longer than usual.
fn warm_up(poller: &Poller, conversations: &mut [Conversation]) -> io::Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        rounds(poller, conversations, Duration::from_millis(200), &mut Vec::new())?;
        if beeline_counters::attached().is_none_or(|n| n >= conversations.len() as u64) || Instant::now() > end {
            return Ok(());
        }
    }
}

fn rounds(poller: &Poller, conversations: &mut [Conversation], time: Duration, times: &mut Vec<f64>) -> io::Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        poller.wait(|data| {
            let conversation = &mut conversations[data as usize];
            if conversation.receive()? {
                times.push(conversation.begun.elapsed().as_secs_f64() * 1e6);
                conversation.send()?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn line(measured: Measured) -> String {
    let Measured { mut times, client, server } = measured;
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / times.len() as f64;
    format!(
        r#"{{"attached":{},"rounds":{},"p10":{:.1},"p50":{:.1},"p90":{:.1},"p99":{:.1},"client_cpu":{:.2},"server_cpu":{:.2}}}"#,
        beeline_counters::attached().unwrap_or(0),
        times.len(),
        at(0.1),
        at(0.5),
        at(0.9),
        at(0.99),
        each(client),
        each(server)
    )
}

/// Returns the CPU time that a process has used.
fn cpu_of(process: i32) -> io::Result<Duration> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls store into variables of this function.
    let known =
        unsafe { libc::clock_getcpuclockid(process, &mut clock) == 0 && libc::clock_gettime(clock, &mut time) == 0 };
    match known {
        true => Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        false => Err(io::Error::other(format!("the CPU time of process {process} is not known"))),
    }
}

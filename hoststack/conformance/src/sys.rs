// SPDX-License-Identifier: Apache-2.0

//! System calls of the cases, through the C library, with results as text.

use libc::{c_int, c_long, iovec};
use std::fmt::Display;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::time::Duration;

/// Returns the counters of the preload library: ends attached, octets received and sent, violations; None without it.
pub fn counters() -> Option<[u64; 4]> {
    beeline_counters::read().map(|c| [c.attached, c.received, c.sent, c.violations])
}

/// Returns a system call that the library does not see.
///
/// # Safety
/// As for the system call of this number.
pub unsafe fn enter(number: c_long, [a, b, c]: [usize; 3]) -> c_long {
    let result;
    // SAFETY: the kernel's calling convention.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _, options(nostack));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c,
            options(nostack));
    }
    result
}

/// Writes a line that both ways have to have.
pub fn note(what: impl Display, result: impl Display) {
    println!("{what}: {result}");
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Returns the name of an error, since numbers say little.
pub fn name(error: i32) -> String {
    let known = [
        (libc::EAGAIN, "EAGAIN"),
        (libc::EBUSY, "EBUSY"),
        (libc::EPIPE, "EPIPE"),
        (libc::ECONNRESET, "ECONNRESET"),
        (libc::EINTR, "EINTR"),
        (libc::EBADF, "EBADF"),
        (libc::EINPROGRESS, "EINPROGRESS"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::EINVAL, "EINVAL"),
        (libc::EMSGSIZE, "EMSGSIZE"),
        (libc::EEXIST, "EEXIST"),
        (libc::ENOENT, "ENOENT"),
        (libc::ENOTCONN, "ENOTCONN"),
    ];
    known.iter().find(|(number, _)| *number == error).map_or(format!("error {error}"), |(_, name)| name.to_string())
}

/// Result of a call: a number or an error.
pub fn outcome(result: isize) -> String {
    match result {
        -1 => name(errno()),
        n => n.to_string(),
    }
}

/// Returns that of this process.
pub fn cpu_time() -> Duration {
    // SAFETY: zero is a valid timespec.
    let mut time: libc::timespec = unsafe { zeroed() };
    // SAFETY: the structure is this function's.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn send(fd: c_int, octets: &[u8], flags: c_int) -> isize {
    // SAFETY: the octets live as long as the call.
    unsafe { libc::send(fd, octets.as_ptr().cast(), octets.len(), flags) }
}

/// Returns what was received, as text, or the error.
pub fn recv(fd: c_int, count: usize, flags: c_int) -> String {
    let mut buffer = vec![0u8; count];
    // SAFETY: the buffer has that many octets.
    let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), count, flags) };
    text(n, &buffer)
}

/// Returns the text of a receive: octets as they are if they are few.
pub fn text(n: isize, buffer: &[u8]) -> String {
    match n {
        -1 => name(errno()),
        n => format!("{n} {}", String::from_utf8_lossy(&buffer[..(n as usize).min(40)])),
    }
}

pub fn close(fd: c_int) {
    // SAFETY: closing a number is harmless to memory.
    unsafe { libc::close(fd) };
}

pub fn set_nonblocking(fd: c_int, on: bool) {
    // SAFETY: fcntl of a descriptor.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL, 0);
        libc::fcntl(fd, libc::F_SETFL, if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK });
    }
}

pub fn set_option<T>(fd: c_int, name: c_int, value: T) {
    set_option_of(fd, libc::SOL_SOCKET, name, value);
}

/// Sets an option of a level, such as IPPROTO_TCP.
pub fn set_option_of<T>(fd: c_int, level: c_int, name: c_int, value: T) {
    let (place, length) = (std::ptr::from_ref(&value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value lives as long as the call.
    let result = unsafe { libc::setsockopt(fd, level, name, place, length) };
    assert_eq!(result, 0, "setsockopt {name}");
}

pub fn socket_error(fd: c_int) -> String {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    let place = std::ptr::from_mut(&mut value).cast();
    // SAFETY: SO_ERROR stores a number.
    unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, place, &mut length) };
    if value == 0 {
        "none".into()
    } else {
        name(value)
    }
}

/// Waits for events of one descriptor, for `timeout` milliseconds.
pub fn poll(fd: c_int, events: i16, timeout: c_int) -> String {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one descriptor.
    let n = unsafe { libc::poll(&mut one, 1, timeout) };
    format!("{n} {}", bits(one.revents as u32))
}

/// Returns the names of the bits of poll and epoll, which have the same values.
pub fn bits(events: u32) -> String {
    let known = [
        (libc::EPOLLIN, "IN"),
        (libc::EPOLLOUT, "OUT"),
        (libc::EPOLLRDHUP, "RDHUP"),
        (libc::EPOLLHUP, "HUP"),
        (libc::EPOLLERR, "ERR"),
        (libc::EPOLLPRI, "PRI"),
    ];
    let set: Vec<&str> = known.iter().filter(|(bit, _)| events & *bit as u32 != 0).map(|(_, name)| *name).collect();
    if set.is_empty() {
        "nothing".into()
    } else {
        set.join("+")
    }
}

pub fn epoll() -> c_int {
    // SAFETY: no preconditions.
    unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }
}

pub fn control(epoll: c_int, operation: c_int, fd: c_int, events: c_int, data: u64) -> String {
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    // SAFETY: the event is this function's.
    outcome(unsafe { libc::epoll_ctl(epoll, operation, fd, &mut event) } as isize)
}

pub fn add(epoll: c_int, fd: c_int, events: c_int, data: u64) {
    assert_eq!(control(epoll, libc::EPOLL_CTL_ADD, fd, events, data), "0", "epoll_ctl");
}

/// Returns the events of epoll_wait, sorted by data.
pub fn wait(epoll: c_int, most: usize, timeout: c_int) -> String {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; most];
    // SAFETY: the list has that many places.
    let n = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most as c_int, timeout) };
    if n < 0 {
        return name(errno());
    }
    let mut seen: Vec<(u64, u32)> = events[..n as usize].iter().map(|e| (e.u64, e.events)).collect();
    seen.sort_unstable();
    let each: Vec<String> = seen.iter().map(|(data, events)| format!("{data}={}", bits(*events))).collect();
    format!("{n} [{}]", each.join(" "))
}

/// Both ends of one connection in this process.
#[derive(Clone, Copy)]
pub struct Pair {
    pub connector: c_int,
    pub acceptor: c_int,
}

impl Pair {
    pub fn close(self) {
        close(self.connector);
        close(self.acceptor);
    }
}

/// Makes a connection on which nothing was sent yet.
pub fn fresh() -> Pair {
    fresh_at("127.0.0.1:0".parse().unwrap(), None)
}

/// Listens at one address and connects to another name of it.
pub fn fresh_at(address: SocketAddr, by: Option<std::net::IpAddr>) -> Pair {
    accept_from(&std::net::TcpListener::bind(address).expect("bind"), by)
}

/// Makes buffers of the kernel of `size` octets, for what the connector sends.
pub fn fresh_with(size: c_int) -> Pair {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    set_option(std::os::fd::AsRawFd::as_raw_fd(&listener), libc::SO_RCVBUF, size);
    let made = accept_from(&listener, None);
    set_option(made.connector, libc::SO_SNDBUF, size);
    made
}

/// Connects to a listener.
pub fn accept_from(listener: &std::net::TcpListener, by: Option<std::net::IpAddr>) -> Pair {
    use std::os::fd::IntoRawFd;
    let mut server = listener.local_addr().unwrap();
    if let Some(ip) = by {
        server.set_ip(ip);
    }
    let connector = std::net::TcpStream::connect(server).expect("connect").into_raw_fd();
    let acceptor = listener.accept().expect("accept").0.into_raw_fd();
    for fd in [connector, acceptor] {
        // Without it the kernel delays segments, and polls would depend on time.
        set_nodelay(fd);
    }
    Pair { connector, acceptor }
}

fn set_nodelay(fd: c_int) {
    let one: c_int = 1;
    let length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: a number, as TCP_NODELAY takes.
    unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, std::ptr::from_ref(&one).cast(), length) };
}

/// Makes a connection that has been used often enough to be on rings.
pub fn pair() -> Pair {
    let made = fresh();
    warm_up(made);
    made
}

pub fn warm_up(pair: Pair) {
    for _ in 0..8 {
        for (from, to) in [(pair.connector, pair.acceptor), (pair.acceptor, pair.connector)] {
            assert_eq!(send(from, b"w", 0), 1);
            assert_eq!(recv(to, 1, 0), "1 w");
        }
    }
}

/// Describes buffers for readv and its relatives.
pub fn parts(buffers: &mut [&mut [u8]]) -> Vec<iovec> {
    buffers.iter_mut().map(|b| iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() }).collect()
}

pub fn message(parts: &mut [iovec]) -> libc::msghdr {
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}

/// Forks, runs `f` in the child, and returns the child's number.
pub fn in_child(f: impl FnOnce()) -> c_int {
    use std::io::Write;
    std::io::stdout().flush().expect("flush");
    // SAFETY: the child runs only `f`, and ends.
    match unsafe { libc::fork() } {
        0 => {
            f();
            std::io::stdout().flush().expect("flush");
            // SAFETY: the end of the child.
            unsafe { libc::_exit(0) }
        }
        child => child,
    }
}

/// Waits for a child and describes its end.
pub fn end_of(child: c_int) -> String {
    let mut status = 0;
    // SAFETY: waitpid stores a number.
    unsafe { libc::waitpid(child, &mut status, 0) };
    match libc::WIFSIGNALED(status) {
        true => format!("signal {}", libc::WTERMSIG(status)),
        false => format!("exit {}", libc::WEXITSTATUS(status)),
    }
}

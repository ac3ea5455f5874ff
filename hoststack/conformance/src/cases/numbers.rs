// SPDX-License-Identifier: Apache-2.0

//! Descriptors that get another connection: a socket is connected again, or a number is closed and used again by calls
//! that the library does not see.

use super::copies::{pass_descriptor, receive_descriptor};
use super::unseen::{close_unseen, move_up, move_up_unseen, unix_high_up, unix_socket, UnixServer};
use crate::sys::*;
use libc::{c_int, sockaddr_in, MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLRDHUP};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, IntoRawFd};

/// A listener, and its address as connect(2) takes it.
struct Server {
    listener: TcpListener,
    address: sockaddr_in,
}

impl Server {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: zero is a valid address.
        let mut address: sockaddr_in = unsafe { std::mem::zeroed() };
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_port = listener.local_addr().unwrap().port().to_be();
        address.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
        Self { listener, address }
    }

    fn words(&self, fd: c_int) -> [usize; 3] {
        [fd as usize, std::ptr::from_ref(&self.address) as usize, size_of::<sockaddr_in>()]
    }

    fn connect(&self, fd: c_int) -> String {
        // SAFETY: the address lives as long as the call.
        outcome(unsafe { libc::connect(fd, std::ptr::from_ref(&self.address).cast(), 16) } as isize)
    }

    fn accept(&self) -> c_int {
        let fd = self.listener.accept().unwrap().0.into_raw_fd();
        set_option(fd, libc::SO_RCVTIMEO, libc::timeval { tv_sec: 2, tv_usec: 0 });
        fd
    }

    /// Returns a connection that the library has seen, and that is on rings.
    fn pair(&self) -> Pair {
        let connector = socket();
        assert_eq!(self.connect(connector), "0");
        let made = Pair { connector, acceptor: self.accept() };
        warm_up(made);
        made
    }

    /// Returns a connection of which the library knows nothing.
    fn pair_unseen(&self) -> Pair {
        // SAFETY: system calls with an address that lives as long as they.
        unsafe {
            let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as usize;
            let connector = enter(libc::SYS_socket, [libc::AF_INET as usize, kind, 0]);
            assert_eq!(enter(libc::SYS_connect, self.words(connector as c_int)), 0);
            let acceptor = enter(libc::SYS_accept, [self.listener.as_raw_fd() as usize, 0, 0]);
            Pair { connector: connector as c_int, acceptor: acceptor as c_int }
        }
    }
}

fn socket() -> c_int {
    // SAFETY: no preconditions.
    unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }
}

const NOBODY: libc::sockaddr = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };

fn disconnect(fd: c_int) -> String {
    // SAFETY: the address lives as long as the call.
    outcome(unsafe { libc::connect(fd, &NOBODY, 16) } as isize)
}

/// Disconnects by a system call that the library does not see.
fn disconnect_unseen(fd: c_int) {
    // SAFETY: as above.
    assert_eq!(unsafe { enter(libc::SYS_connect, [fd as usize, std::ptr::from_ref(&NOBODY) as usize, 16]) }, 0);
}

/// Calls dup2(2) by a system call that the library does not see.
fn replace_unseen(from: c_int, to: c_int) {
    // SAFETY: numbers.
    assert_eq!(unsafe { enter(libc::SYS_dup3, [from as usize, to as usize, libc::O_CLOEXEC as usize]) }, to as i64);
}

/// Makes both ends of a connection send and receive.
fn converse(p: Pair) {
    for _ in 0..8 {
        for (from, to) in [(p.connector, p.acceptor), (p.acceptor, p.connector)] {
            let sent = outcome(send(from, b"a message", MSG_NOSIGNAL));
            note("sent, received", format!("{sent}, {}", recv(to, 20, 0)));
        }
    }
}

/// The same socket with another server, after octets in both directions that nobody has read.
pub fn reconnected() {
    let (first, second) = (Server::new(), Server::new());
    for _ in 0..2 {
        let old = first.pair();
        send(old.connector, b"read later", 0);
        send(old.acceptor, b"never read", 0);
        note("disconnect", disconnect(old.connector));
        note("recv in between", recv(old.connector, 20, MSG_DONTWAIT));
        note("recv in between", recv(old.connector, 20, MSG_DONTWAIT));
        note("connect", second.connect(old.connector));
        let new = Pair { acceptor: second.accept(), ..old };
        send(new.connector, b"secret", MSG_NOSIGNAL);
        note("the second server", recv(new.acceptor, 20, 0));
        note("the first server", recv(old.acceptor, 20, 0));
        note("the first server", recv(old.acceptor, 20, 0));
        note("the first server sends", outcome(send(old.acceptor, b"late", MSG_NOSIGNAL)));
        converse(new);
        close(old.acceptor);
        close(new.connector);
        note("end", recv(new.acceptor, 20, 0));
        close(new.acceptor);
    }
}

/// An epoll instance has the socket all the time. What it waits for in between is the kernel's to say.
pub fn reconnected_in_epoll() {
    let (first, second) = (Server::new(), Server::new());
    let old = first.pair();
    let e = epoll();
    add(e, old.connector, libc::EPOLLIN | libc::EPOLLOUT, 1);
    note("writable", wait(e, 8, 1000));
    note("disconnect", disconnect(old.connector));
    note("disconnected", wait(e, 8, 1000));
    note("connect", second.connect(old.connector));
    let new = Pair { acceptor: second.accept(), ..old };
    note("writable", wait(e, 8, 1000));
    send(new.acceptor, b"to the socket", 0);
    note("readable", wait(e, 8, 1000));
    note("recv", recv(new.connector, 20, 0));
    converse(new);
    new.close();
    close(old.acceptor);
    close(e);
}

/// Before it has rings, a connection leaves nothing behind: the next one may have them.
pub fn reconnected_before_rings() {
    let (first, second) = (Server::new(), Server::new());
    let connector = socket();
    note("connect", first.connect(connector));
    let old = Pair { connector, acceptor: first.accept() };
    for _ in 0..2 {
        send(old.connector, b"to the first", 0);
        note("recv", recv(old.acceptor, 20, 0));
    }
    note("disconnect", disconnect(connector));
    note("recv", recv(old.acceptor, 20, 0));
    note("connect", second.connect(connector));
    let new = Pair { connector, acceptor: second.accept() };
    converse(new);
    new.close();
    close(old.acceptor);
}

/// The end that accept(2) returned connects elsewhere; the end that a child inherited does.
pub fn reconnected_by_others() {
    let (first, second) = (Server::new(), Server::new());
    let old = first.pair();
    note("disconnect", disconnect(old.acceptor));
    note("the old peer", recv(old.connector, 20, 0));
    note("connect", second.connect(old.acceptor));
    let new = Pair { connector: old.acceptor, acceptor: second.accept() };
    converse(new);
    new.close();
    close(old.connector);

    let old = first.pair();
    let child = in_child(|| {
        note("disconnect", disconnect(old.connector));
        note("connect", second.connect(old.connector));
    });
    note("child", end_of(child));
    let new = Pair { acceptor: second.accept(), ..old };
    note("the old peer", recv(old.acceptor, 20, 0));
    converse(new);
    new.close();
    close(old.acceptor);
}

/// connect(2) of a socket that has a connection, and the call that only reports that the connection is there.
pub fn connected_again() {
    let (first, second) = (Server::new(), Server::new());
    let p = first.pair();
    note("connect elsewhere", second.connect(p.connector));
    converse(p);
    p.close();
    let connector = socket();
    set_nonblocking(connector, true);
    note("connect", first.connect(connector));
    let p = Pair { connector, acceptor: first.accept() };
    note("poll", poll(connector, libc::POLLOUT, 1000));
    set_nonblocking(connector, false);
    converse(p);
    send(p.acceptor, b"before it", 0);
    note("connect again", first.connect(connector));
    note("recv", recv(connector, 20, 0));
    converse(p);
    note("and again", first.connect(connector));
    p.close();
}

/// A system call that the library does not see disconnects, and one that it sees connects.
pub fn disconnected_unseen() {
    let (first, second) = (Server::new(), Server::new());
    let old = first.pair();
    disconnect_unseen(old.connector);
    note("connect", second.connect(old.connector));
    let new = Pair { acceptor: second.accept(), ..old };
    note("the old peer", recv(old.acceptor, 20, 0));
    converse(new);
    new.close();
    close(old.acceptor);
}

/// A number that is closed unseen is used again by each call that makes one.
pub fn number_used_again() {
    let (first, second) = (Server::new(), Server::new());
    let by_socket = || {
        let connector = socket();
        second.connect(connector);
        Pair { connector, acceptor: second.accept() }
    };
    let by_accept = || {
        let connector = move_up(socket());
        second.connect(connector);
        Pair { connector, acceptor: second.accept() }
    };
    let by_dup = || {
        let p = pair_high_up(&second);
        // SAFETY: numbers.
        Pair { connector: unsafe { libc::dup(p.connector) }, ..p }
    };
    // Sockets that no session is made for.
    let unix = UnixServer::new();
    let unix_by_socket = || {
        let connector = unix_socket();
        unix.connect(connector);
        Pair { connector, acceptor: unix.accept() }
    };
    let unix_by_accept = || {
        let connector = unix_high_up();
        unix.connect(connector);
        Pair { connector: unix.accept(), acceptor: connector }
    };
    let unix_by_dup = || {
        let connector = unix_high_up();
        unix.connect(connector);
        let acceptor = move_up_unseen(unix.accept_unseen());
        // SAFETY: numbers.
        Pair { connector: unsafe { libc::dup(connector) }, acceptor }
    };
    let makers: [(&str, &dyn Fn() -> Pair); 6] = [
        ("socket", &by_socket),
        ("accept", &by_accept),
        ("dup", &by_dup),
        ("socket, Unix", &unix_by_socket),
        ("accept, Unix", &unix_by_accept),
        ("dup, Unix", &unix_by_dup),
    ];
    for (name, make) in makers {
        for end in [|p: Pair| p.connector, |p: Pair| p.acceptor] {
            let old = first.pair();
            let number = end(old);
            close_unseen(number);
            let new = make();
            note(name, new.connector == number || new.acceptor == number);
            converse(new);
            let other = if number == old.connector { old.acceptor } else { old.connector };
            note("the old peer", recv(other, 20, 0));
            close(other);
            new.close();
        }
    }
}

/// Returns a connection of which neither end takes a low number.
fn pair_high_up(server: &Server) -> Pair {
    let connector = move_up(socket());
    server.connect(connector);
    Pair { connector, acceptor: move_up(server.accept()) }
}

/// An epoll instance gets a number that it had for a connection that was closed unseen.
pub fn number_added_again() {
    let (first, second) = (Server::new(), Server::new());
    let e = epoll();
    let old = first.pair();
    add(e, old.acceptor, libc::EPOLLIN, 1);
    let new = second.pair_unseen();
    replace_unseen(new.acceptor, old.acceptor);
    note("add", control(e, libc::EPOLL_CTL_ADD, old.acceptor, libc::EPOLLIN, 2));
    send(new.connector, b"to the new one", 0);
    note("readable", wait(e, 8, 1000));
    note("recv", recv(old.acceptor, 20, 0));
    note("the old peer", recv(old.connector, 20, 0));
    new.close();
    old.close();
    close(e);
}

/// Another connection is put at a number unseen. What it receives is its own; what it sends is, once the old peer has
/// seen the end of the old one.
pub fn number_replaced() {
    let (first, second) = (Server::new(), Server::new());
    for (seen, end) in [(true, true), (false, true), (true, false), (false, false)] {
        let (old, new) = (first.pair(), if seen { second.pair() } else { second.pair_unseen() });
        let (number, other) = if end { (old.connector, old.acceptor) } else { (old.acceptor, old.connector) };
        replace_unseen(new.connector, number);
        send(new.acceptor, b"to the new one", 0);
        let received = if seen { String::new() } else { recv(number, 20, 0) };
        note("recv", received);
        note("the old peer", poll(other, POLLIN | POLLRDHUP, 1000));
        note("the old peer", recv(other, 20, 0));
        send(number, b"from the new one", MSG_NOSIGNAL);
        note("sent", if seen { String::new() } else { recv(new.acceptor, 20, 0) });
        note("the old peer", recv(other, 20, 0));
        close(number);
        close(other);
        new.close();
    }
}

/// The number is closed unseen, and comes again with a message, or by pidfd_getfd(2).
pub fn number_passed() {
    let (first, second) = (Server::new(), Server::new());
    for by_message in [true, false] {
        let old = first.pair();
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let new = second.pair_unseen();
        close_unseen(old.connector);
        let number = if by_message {
            pass_descriptor(here.as_raw_fd(), new.connector);
            receive_descriptor(there.as_raw_fd())
        } else {
            copy_by_pidfd(new.connector, old.connector)
        };
        note("number", number == old.connector);
        converse(Pair { connector: number, ..new });
        note("the old peer", recv(old.acceptor, 20, 0));
        close(old.acceptor);
        close(number);
        new.close();
    }
}

/// Calls pidfd_getfd(2) for this process, with `low` as the lowest free number.
fn copy_by_pidfd(fd: c_int, low: c_int) -> c_int {
    // SAFETY: system calls with numbers.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as c_int;
        let process = if process == low { move_up_unseen(process) } else { process };
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process, fd, 0) as c_int;
        close(process);
        copy
    }
}

/// A copy by pidfd_getfd(2) of a connection that has no rings yet is one by dup(2), whatever comes later.
pub fn taken_before_rings() {
    let p = fresh();
    let copy = copy_by_pidfd(p.acceptor, 0);
    warm_up(p);
    converse(Pair { acceptor: copy, ..p });
    close(p.acceptor);
    converse(Pair { acceptor: copy, ..p });
    close(copy);
    note("end", recv(p.connector, 20, 0));
    close(p.connector);
}

/// An io_uring closes a number, which is used again.
pub fn closed_by_io_uring() {
    let (first, second) = (Server::new(), Server::new());
    let old = first.pair();
    note("closed", close_by_ring(old.connector));
    let fd = socket();
    note("number", fd == old.connector);
    note("connect", second.connect(fd));
    let new = Pair { connector: fd, acceptor: second.accept() };
    note("the old peer", recv(old.acceptor, 20, 0));
    converse(new);
    new.close();
    close(old.acceptor);
}

/// Submits IORING_OP_CLOSE by system calls that the library does not see, and returns its result.
fn close_by_ring(fd: c_int) -> String {
    const PARAMETERS: usize = 120; // of struct io_uring_params
    const IORING_OP_CLOSE: u8 = 19;
    let mut parameters = [0u32; PARAMETERS / 4];
    // SAFETY: the structure has its size, and the mappings that of linux/io_uring.h for one entry.
    unsafe {
        let ring = enter(libc::SYS_io_uring_setup, [1, parameters.as_mut_ptr() as usize, 0]) as c_int;
        if ring < 0 {
            return name(-ring);
        }
        let map = |offset: i64| {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            libc::mmap(std::ptr::null_mut(), 4096, protection, flags, ring, offset).cast::<u8>()
        };
        let (queues, entries) = (map(0), map(0x1000_0000));
        // sq_off.tail, sq_off.array, cq_off.cqes
        let at = |word: usize| queues.add(parameters[word] as usize).cast::<u32>();
        entries.write(IORING_OP_CLOSE);
        entries.add(4).cast::<i32>().write(fd);
        at(16).write(0);
        at(11).write_volatile(1);
        enter_io_uring(ring);
        let result = at(25).add(2).cast::<i32>().read_volatile();
        libc::munmap(queues.cast(), 4096);
        libc::munmap(entries.cast(), 4096);
        close_unseen(ring);
        result.to_string()
    }
}

/// Submits one entry and waits for its end. The library has no part in io_uring_enter(2).
unsafe fn enter_io_uring(ring: c_int) {
    const IORING_ENTER_GETEVENTS: c_int = 1;
    // SAFETY: a system call with numbers.
    let entered = unsafe { libc::syscall(libc::SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) };
    assert_eq!(entered, 1, "{}", name(errno()));
}

/// Data with the connect(2): MSG_FASTOPEN of a socket that an epoll instance has already.
pub fn connected_with_data() {
    let (first, second) = (Server::new(), Server::new());
    let e = epoll();
    let fd = socket();
    add(e, fd, libc::EPOLLOUT, 1);
    let with_data = |server: &Server| {
        let address = std::ptr::from_ref(&server.address).cast();
        // SAFETY: the address and the octets live as long as the call.
        outcome(unsafe {
            libc::sendto(fd, b"early".as_ptr().cast(), 5, libc::MSG_FASTOPEN | MSG_NOSIGNAL, address, 16)
        })
    };
    let sent = with_data(&first);
    note("sent", &sent);
    if sent != "5" {
        return converse(first.pair()); // net.ipv4.tcp_fastopen forbids it
    }
    let p = Pair { connector: fd, acceptor: first.accept() };
    note("recv", recv(p.acceptor, 20, 0));
    (0..4).for_each(|_| warm_up(p));
    converse(p);
    note("sent on a connection", with_data(&second));
    converse(p);
    p.close();
    close(e);
}

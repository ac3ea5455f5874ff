// SPDX-License-Identifier: Apache-2.0

//! Offers of rings by a peer that is hostile or broken: the library takes none of them, the connection goes on, and no
//! descriptor stays open. The peer is the acceptor's end of a connection of this process, used by system calls alone,
//! so that the library does not make an offer for it.

use crate::sys::*;
use beeline_ring::{Header, Layout};
use libc::{c_int, c_void, socklen_t};
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::ptr::{from_mut, from_ref};

const CAPACITY: u32 = 65536;
const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// What is sent to an offer socket.
pub struct Offer {
    size: usize,
    seals: c_int,
    /// The memory has a header, in which some words are replaced.
    header: bool,
    words: Vec<(usize, u32)>,
    /// Memory, the connector's event, the acceptor's. Memory is made after the other fields if there is none.
    descriptors: Vec<c_int>,
    text: Vec<u8>,
}

impl Offer {
    /// Returns an offer as the library makes it.
    pub fn right(p: Pair) -> Self {
        let (server, client) = ends(p.acceptor);
        let mut text = Vec::new();
        text.extend(octets(server.ip()));
        text.extend(octets(client.ip()));
        text.extend(server.port().to_ne_bytes());
        text.extend(client.port().to_ne_bytes());
        let descriptors = vec![-1, event(), event()];
        Self { size: Layout::bytes(CAPACITY), seals: SEALS, header: true, words: Vec::new(), descriptors, text }
    }

    fn memory(&self) -> c_int {
        let seals = if self.header { 0 } else { self.seals };
        let fd = memory(self.size, seals);
        if self.header {
            let (protection, nowhere) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
            // SAFETY: the memory has more than a header, and nobody else has it yet.
            unsafe {
                let at = libc::mmap(nowhere, self.size, protection, libc::MAP_SHARED, fd, 0);
                at.cast::<Header>().write(Header::new(CAPACITY));
                self.words.iter().for_each(|(i, word)| at.cast::<u32>().add(*i).write(*word));
                libc::munmap(at, self.size);
                assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, self.seals), 0);
            }
        }
        fd
    }

    /// Closes a descriptor and offers another one in its place.
    fn replace(&mut self, i: usize, by: c_int) {
        close(self.descriptors[i]);
        self.descriptors[i] = by;
    }
}

type Change = fn(&mut Offer);

/// What is wrong with each offer.
const WRONG: &[(&str, Change)] = &[
    ("no seals", |o| o.seals = 0),
    ("memory may shrink", |o| o.seals = libc::F_SEAL_GROW),
    ("memory may grow", |o| o.seals = libc::F_SEAL_SHRINK),
    ("memory is read-only", |o| o.seals |= libc::F_SEAL_WRITE),
    ("memory is a page", |o| o.size = 4096),
    ("memory is empty", |o| (o.size, o.header) = (0, false)),
    ("memory is larger than the header says", |o| o.size += 4096),
    ("rings are too large", |o| (o.size, o.words) = (Layout::bytes(1 << 21), vec![(3, 1 << 21)])),
    ("rings are no power of two", |o| (o.size, o.words) = (o.size + 2, vec![(3, CAPACITY + 1)])),
    ("no header", |o| o.header = false),
    ("unknown version", |o| o.words = vec![(1, 99), (2, 99)]),
    ("chosen already", |o| o.words = vec![(4, 1)]),
    ("memory is a pipe", |o| o.descriptors[0] = pipe()),
    ("memory is a device", |o| o.descriptors[0] = open(c"/dev/zero")),
    ("an event is a pipe", |o| o.replace(1, pipe())),
    ("an event is memory", |o| o.replace(2, memory(4096, SEALS))),
    ("an event blocks", |o| o.replace(2, event_with(0))),
    ("no descriptors", |o| o.descriptors.drain(..).for_each(close)),
    ("two descriptors", |o| close(o.descriptors.remove(1))),
    ("twelve descriptors", |o| (0..9).for_each(|_| o.descriptors.push(event()))),
    ("sixty descriptors", |o| (0..57).for_each(|_| o.descriptors.push(event()))),
    ("half of the text", |o| o.text.truncate(18)),
    ("no text", |o| o.text.truncate(1)),
    ("another server", |o| o.text[15] ^= 1),
    ("another port of the client", |o| o.text[34] ^= 1),
    ("ports exchanged", |o| o.text[32..].rotate_left(2)),
];

pub fn wrong_offers() {
    wrong_offer(WRONG[0].1); // has the library open what it keeps
    let before = open_descriptors();
    for (what, change) in WRONG {
        note(what, wrong_offer(*change));
        note("descriptors left", open_descriptors() - before);
    }
    // The same without a fault is taken: the library's counters say so.
    let p = fresh();
    ask(p);
    deliver(p, Offer::right(p));
    note("after the right offer", recv(p.connector, 1, libc::MSG_DONTWAIT));
    p.close();
}

/// Uses a connection before and after an offer, and closes it.
fn wrong_offer(change: Change) -> String {
    let p = fresh();
    let before = ask(p);
    let mut offer = Offer::right(p);
    change(&mut offer);
    deliver(p, offer);
    let after = ask(p);
    p.close();
    format!("{before}, {after}")
}

/// Sends requests, whose answers are not the library's.
pub fn ask(p: Pair) -> String {
    let mut answers = String::new();
    for _ in 0..8 {
        assert_eq!(send(p.connector, b"q", 0), 1);
        let mut octet = 0u8;
        // SAFETY: one octet, which lives as long as the calls.
        unsafe {
            let (fd, place) = (p.acceptor as usize, from_mut(&mut octet) as usize);
            assert_eq!(enter(libc::SYS_read, [fd, place, 1]), 1);
            assert_eq!(enter(libc::SYS_write, [fd, place, 1]), 1);
        }
        answers = recv(p.connector, 1, 0);
    }
    answers
}

/// Sends an offer to the connector's offer socket. Without the library there is none.
pub fn deliver(p: Pair, mut offer: Offer) {
    if offer.descriptors.first() == Some(&-1) {
        offer.descriptors[0] = offer.memory();
    }
    if counters().is_some() {
        let socket = offer_socket(p.connector);
        send_message(socket, &offer);
        close(socket);
    }
    offer.descriptors.into_iter().for_each(close);
}

fn offer_socket(connector: c_int) -> c_int {
    let (address, length) = offer_socket_address(connector);
    // SAFETY: the address is this function's.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let connected = libc::connect(socket, from_ref(&address).cast(), length);
        assert_eq!(connected, 0, "the offer_socket of the connector: {}", name(errno()));
        socket
    }
}

/// Returns the name that belongs to a connector's socket.
pub fn offer_socket_address(connector: c_int) -> (libc::sockaddr_un, socklen_t) {
    let (mut cookie, mut length) = (0u64, 8 as socklen_t);
    // SAFETY: SO_COOKIE stores eight octets.
    unsafe {
        libc::getsockopt(connector, libc::SOL_SOCKET, libc::SO_COOKIE, from_mut(&mut cookie).cast(), &mut length);
        let mut address: libc::sockaddr_un = zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let path = format!("\0beeline-hoststack-1/{cookie:016x}");
        for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
            *to = from as libc::c_char;
        }
        (address, (size_of::<libc::sa_family_t>() + path.len()) as socklen_t)
    }
}

fn send_message(socket: c_int, offer: &Offer) {
    let mut text = offer.text.clone();
    let mut parts = parts(&mut [&mut text]);
    let mut control = [0u64; 64];
    let mut message = message(&mut parts);
    let count = size_of::<c_int>() * offer.descriptors.len();
    // SAFETY: the buffer has room for the header and 60 descriptors.
    unsafe {
        if count > 0 {
            message.msg_control = control.as_mut_ptr().cast::<c_void>();
            message.msg_controllen = libc::CMSG_SPACE(count as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(count as u32) as _;
            std::ptr::copy_nonoverlapping(offer.descriptors.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), count);
        }
        assert_eq!(libc::sendmsg(socket, &message, 0), offer.text.len() as isize, "{}", name(errno()));
    }
}

fn memory(size: usize, seals: c_int) -> c_int {
    // SAFETY: calls for this function's own descriptor.
    unsafe {
        let fd = libc::memfd_create(c"beeline-offer".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert_eq!(libc::ftruncate(fd, size as libc::off_t), 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
        fd
    }
}

fn event() -> c_int {
    event_with(libc::EFD_NONBLOCK)
}

fn event_with(flags: c_int) -> c_int {
    // SAFETY: no preconditions.
    unsafe { libc::eventfd(0, flags | libc::EFD_CLOEXEC) }
}

/// Returns the end for reading. That for writing is closed.
fn pipe() -> c_int {
    let mut ends = [0; 2];
    // SAFETY: pipe2 stores two descriptors.
    unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
    close(ends[1]);
    ends[0]
}

fn open(path: &std::ffi::CStr) -> c_int {
    // SAFETY: the path ends with a zero octet.
    unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
}

/// Returns the server's and the client's address of a connection, by the acceptor's socket.
fn ends(acceptor: c_int) -> (SocketAddr, SocketAddr) {
    // SAFETY: the descriptor is given back below.
    let stream = unsafe { TcpStream::from_raw_fd(acceptor) };
    let both = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    assert_eq!(stream.into_raw_fd(), acceptor);
    both
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn open_descriptors() -> isize {
    std::fs::read_dir("/proc/self/fd").expect("descriptors").count() as isize
}

// SPDX-License-Identifier: Apache-2.0

//! Who has a TCP socket of this network namespace, as the kernel reports by sock_diag(7).

use crate::sys::errno::{self, ENOENT, EPROTO};
use crate::sys::{uncancelled, Errno, Fd, FdCell, Outcome};
use core::mem::{size_of, zeroed};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;

const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Of linux/inet_diag.h.
const INET_DIAG_CGROUP_ID: u16 = 21;

/// The owner of a socket.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Owner {
    pub cookie: u64,
    pub uid: u32,
    /// The control group of the socket; 0 if the kernel does not report it.
    group: u64,
}

impl Owner {
    /// Returns a number that is the same for all sockets of a program, as far as the kernel reports; never 0.
    pub fn client(&self) -> u64 {
        (self.group.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(self.uid)) | 1 << 63
    }
}

/// inet_diag_sockid of linux/inet_diag.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct SocketId {
    source_port: u16,
    destination_port: u16,
    source: [u8; 16],
    destination: [u8; 16],
    device: u32,
    cookie: [u32; 2],
}

/// nlmsghdr and inet_diag_req_v2.
#[repr(C)]
struct Request {
    header: libc::nlmsghdr,
    family: u8,
    protocol: u8,
    extensions: u8,
    padding: u8,
    states: u32,
    id: SocketId,
}

/// nlmsghdr and inet_diag_msg.
#[repr(C)]
struct Reply {
    header: libc::nlmsghdr,
    family: u8,
    state: u8,
    timer: u8,
    retransmissions: u8,
    id: SocketId,
    expires: u32,
    receive_queue: u32,
    send_queue: u32,
    uid: u32,
    inode: u32,
}

static SOCKET: FdCell = FdCell::empty();
/// Of the next request.
static NUMBER: AtomicU32 = AtomicU32::new(1);
static REQUEST: crate::sys::lock::Lock<()> = crate::sys::lock::Lock::new(());

/// Finds the socket whose own address is `local` and whose peer is `remote`. The error ENOENT says that this network
/// namespace has none; with any other one it is not known.
pub fn owner(local: SocketAddr, remote: SocketAddr) -> Outcome<Owner> {
    let _request = REQUEST.lock();
    let socket = socket()?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let request = Request::new(local, remote, number);
    let length = size_of::<Request>();
    // SAFETY: the request has `length` octets.
    let sent = unsafe { uncancelled::send(socket, core::ptr::from_ref(&request).cast(), length, libc::MSG_DONTWAIT) };
    errno::outcome(sent)?;
    loop {
        if let Some(answer) = receive(socket, number)? {
            // The kernel answers with a socket that listens there if it has no such connection.
            return answer.and_then(|(found, peer)| (peer == remote.port()).then_some(found).ok_or(ENOENT));
        }
    }
}

type Answer = Outcome<(Owner, u16)>;

/// Reads an answer, an owner and the port of the peer; None if it is that of another request. The kernel puts it into
/// the queue before send returns, so nothing waits.
fn receive(socket: c_int, number: u32) -> Outcome<Option<Answer>> {
    let mut buffer = [0u64; 256];
    // SAFETY: the buffer has that many octets.
    let n = unsafe { uncancelled::recv(socket, buffer.as_mut_ptr().cast(), size_of_val(&buffer), libc::MSG_DONTWAIT) };
    let n = errno::outcome(n)?;
    // SAFETY: the buffer is aligned and larger than each of these.
    let (header, reply) = unsafe { (&*buffer.as_ptr().cast::<libc::nlmsghdr>(), &*buffer.as_ptr().cast::<Reply>()) };
    if n < size_of::<libc::nlmsghdr>() || header.nlmsg_seq != number {
        return Ok(None);
    }
    if header.nlmsg_type != SOCK_DIAG_BY_FAMILY || n < size_of::<Reply>() {
        // SAFETY: as above: the number of an error follows the header.
        let error = unsafe { buffer.as_ptr().cast::<i32>().add(size_of::<libc::nlmsghdr>() / 4).read() };
        let is_error = header.nlmsg_type == libc::NLMSG_ERROR as u16 && error < 0;
        return Ok(Some(Err(if is_error { Errno(-error) } else { EPROTO })));
    }
    let cookie = u64::from(reply.id.cookie[1]) << 32 | u64::from(reply.id.cookie[0]);
    let length = n.min(header.nlmsg_len as usize) / 4;
    // SAFETY: the kernel has stored so many words.
    let words = unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast::<u32>(), length) };
    let group = group(words.get(size_of::<Reply>() / 4..).unwrap_or(&[]));
    Ok(Some(Ok((Owner { cookie, uid: reply.uid, group }, u16::from_be(reply.id.destination_port)))))
}

/// Returns the number of the control group among attributes (struct nlattr), which are aligned to words; 0 if there is
/// none.
fn group(mut words: &[u32]) -> u64 {
    while let Some((&head, rest)) = words.split_first() {
        let [a, b, c, d] = head.to_ne_bytes();
        let (length, kind) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        if let (INET_DIAG_CGROUP_ID, [low, high, ..]) = (kind, rest) {
            let ([a, b, c, d], [e, f, g, h]) = (low.to_ne_bytes(), high.to_ne_bytes());
            return u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        }
        words = words.get(usize::from(length).div_ceil(4).max(1)..).unwrap_or(&[]);
    }
    0
}

fn socket() -> Outcome<c_int> {
    if let Some(known) = SOCKET.number() {
        return Ok(known);
    }
    const NETLINK_SOCK_DIAG: c_int = 4;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket has no preconditions.
    let made = unsafe { libc::socket(libc::AF_NETLINK, kind, NETLINK_SOCK_DIAG) };
    let made = Fd::adopt(made).ok_or_else(errno::last)?;
    Ok(SOCKET.put_first(made))
}

/// Leaves the parent's socket alone: answers would go to either process.
pub fn after_fork() {
    SOCKET.put(None);
}

impl Request {
    fn new(local: SocketAddr, remote: SocketAddr, number: u32) -> Self {
        // SAFETY: zero is a valid request.
        let mut request: Self = unsafe { zeroed() };
        request.header.nlmsg_len = size_of::<Self>() as u32;
        request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
        request.header.nlmsg_flags = libc::NLM_F_REQUEST as u16;
        request.header.nlmsg_seq = number;
        request.family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
        request.protocol = libc::IPPROTO_TCP as u8;
        request.states = u32::MAX;
        request.id = SocketId {
            source_port: local.port().to_be(),
            destination_port: remote.port().to_be(),
            source: octets(local.ip()),
            destination: octets(remote.ip()),
            device: 0,
            cookie: [u32::MAX; 2],
        };
        request
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => {
            let mut padded = [0; 16];
            padded[..4].copy_from_slice(&v4.octets());
            padded
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn the_answer_to_another_request_is_left_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connections = [(); 2].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let ends = |stream: &TcpStream| (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let cookie = |stream: &TcpStream| crate::sys::socket::cookie(stream.as_raw_fd()).unwrap();
        let [(local, remote), (other, its_remote)] = [ends(&connections[0]), ends(&connections[1])];
        // A thread that was killed in a call has left its answer.
        let request = Request::new(other, its_remote, u32::MAX);
        let (at, length) = (core::ptr::from_ref(&request).cast(), size_of::<Request>());
        // SAFETY: the request has `length` octets.
        assert_eq!(unsafe { uncancelled::send(socket().unwrap(), at, length, 0) }, length as isize);
        assert_eq!(owner(local, remote).unwrap().cookie, cookie(&connections[0]));
        assert_eq!(owner(other, its_remote).unwrap().cookie, cookie(&connections[1]));
    }

    #[test]
    fn a_listener_is_not_the_end_of_a_connection_that_is_not_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        assert_eq!(owner(local, "127.0.0.1:1".parse().unwrap()), Err(ENOENT));
    }
}

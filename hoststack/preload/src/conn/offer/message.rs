// SPDX-License-Identifier: Apache-2.0

//! What both ends know of an offer: the name of the offer socket, and the message with its descriptors.

use crate::conn::{Identity, Session};
use crate::sys::errno::{self, EPROTO};
use crate::sys::{real, uncancelled, Fd, Outcome};
use crate::telemetry::page;
use alloc::vec::Vec;
use core::mem::{size_of, zeroed};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, sockaddr_un};

/// Returns the address of a connector's offer socket.
pub fn address(cookie: u64) -> (sockaddr_un, libc::socklen_t) {
    let name = alloc::format!("\0beeline-hoststack-1/{cookie:016x}");
    // SAFETY: zero is a valid sockaddr_un.
    let mut address: sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    (address, (size_of::<libc::sa_family_t>() + name.len()) as libc::socklen_t)
}

pub fn unix_socket() -> Option<Fd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket has no preconditions.
    Fd::adopt(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

/// Returns the user at the other end of a Unix socket.
pub fn user_of(socket: c_int) -> Option<u32> {
    // SAFETY: zero is a valid ucred.
    let mut peer: libc::ucred = unsafe { zeroed() };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let place = core::ptr::from_mut(&mut peer).cast();
    // SAFETY: SO_PEERCRED stores a ucred.
    let result = unsafe { real::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut length) };
    (result == 0).then_some(peer.uid)
}

/// What the acceptor writes beside the descriptors: the connection, as it sees it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Offer {
    server: [u8; 16],
    client: [u8; 16],
    server_port: u16,
    client_port: u16,
}

impl Offer {
    pub fn new(server: SocketAddr, client: SocketAddr) -> Self {
        Self {
            server: octets(server.ip()),
            client: octets(client.ip()),
            server_port: server.port(),
            client_port: client.port(),
        }
    }

    pub fn server(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.server).to_canonical(), self.server_port)
    }

    pub fn client(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.client).to_canonical(), self.client_port)
    }

    pub fn list(&self, session: &Session) {
        let Identity { role, end, .. } = session.identity();
        page::list(role, (self.server, self.server_port), (self.client, self.client_port), |number| {
            end.listed.store(number, Ordering::Relaxed);
            end.note();
        });
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Room for a control message with three descriptors, aligned.
type Control = [u64; 8];
pub const DESCRIPTORS: usize = 3;

/// Sends an offer without waiting.
pub fn send(socket: &Fd, offer: &Offer, descriptors: [c_int; DESCRIPTORS]) -> bool {
    let mut control: Control = [0; 8];
    let mut part = crate::ring::parts::one(core::ptr::from_ref(offer).cast_mut().cast(), size_of::<Offer>());
    let mut message = message(&mut part, &mut control);
    // SAFETY: the message has room for the header and three descriptors.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of_val(&descriptors) as u32) as _;
        libc::CMSG_DATA(header).cast::<[c_int; DESCRIPTORS]>().write_unaligned(descriptors);
        message.msg_controllen = libc::CMSG_SPACE(size_of_val(&descriptors) as u32) as _;
        uncancelled::sendmsg(socket.number(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            == size_of::<Offer>() as isize
    }
}

fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast::<c_void>();
    message.msg_controllen = size_of::<Control>() as _;
    message
}

/// Takes an offer without waiting.
pub fn receive(socket: c_int) -> Outcome<(Offer, [Fd; DESCRIPTORS])> {
    let mut control: Control = [0; 8];
    // SAFETY: zero is a valid offer.
    let mut offer: Offer = unsafe { zeroed() };
    let mut part = crate::ring::parts::one(core::ptr::from_mut(&mut offer).cast(), size_of::<Offer>());
    let mut message = message(&mut part, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the buffers are this function's.
    let n = errno::outcome(unsafe { uncancelled::recvmsg(socket, &mut message, flags) })?;
    let descriptors = received_descriptors(&message);
    match <[Fd; DESCRIPTORS]>::try_from(descriptors) {
        Ok(complete) if n == size_of::<Offer>() => Ok((offer, complete)),
        _ => Err(EPROTO),
    }
}

/// Returns all that came, so that none is left open.
fn received_descriptors(message: &libc::msghdr) -> Vec<Fd> {
    // SAFETY: the kernel has filled the control buffer; a header lies within it.
    let Some(header) = (unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }) else { return Vec::new() };
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return Vec::new();
    }
    // SAFETY: CMSG_LEN only computes.
    let octets = header.cmsg_len as usize - unsafe { libc::CMSG_LEN(0) } as usize;
    // SAFETY: the data follow the header within the buffer.
    let data = unsafe { libc::CMSG_DATA(header).cast::<c_int>() };
    // SAFETY: as above; as many descriptors as the kernel says.
    (0..octets / size_of::<c_int>()).filter_map(|i| Fd::new(unsafe { data.add(i).read_unaligned() })).collect()
}

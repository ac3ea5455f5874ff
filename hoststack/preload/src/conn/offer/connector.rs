// SPDX-License-Identifier: Apache-2.0

//! The connector's part: its offer socket, and what it checks of an offer.

use super::message::{self, address, unix_socket, user_of, Offer, DESCRIPTORS};
use super::{exclusively, give_up, stop, without_calls};
use crate::conn::Session;
use crate::ring::Memory;
use crate::sys::errno::EAGAIN;
use crate::sys::{diag, real, socket, uncancelled, Fd, Mmap};
use crate::telemetry::{page, Refusal};
use beeline_ring::Layout;
use core::sync::atomic::Ordering;
use libc::c_int;

/// Makes a connector take an offer, if there is one.
pub fn look(session: &'static Session, fd: c_int) {
    if session.offer_socket.number().is_some() && !session.is_attached() {
        exclusively(session, || take_offer(session, fd));
    }
}

/// Takes an offer, and returns whether the session has got rings or somebody is about to send one.
pub fn has_offer(session: &'static Session, fd: c_int) -> bool {
    if session.offer_socket.number().is_some() {
        take_offer(session, fd);
    }
    session.is_attached() || session.offer_connection.number().is_some()
}

/// Makes the acceptor find a socket for its offer.
pub fn open_offer_socket(session: &'static Session, fd: c_int) {
    if session.offer_socket.number().is_some() {
        return;
    }
    let (Some(cookie), Some(socket)) = (socket::cookie(fd), unix_socket()) else { return };
    let (address, length) = address(cookie);
    // SAFETY: the address has that length.
    let bound = unsafe { libc::bind(socket.number(), core::ptr::from_ref(&address).cast(), length) == 0 };
    // SAFETY: listen of this function's own socket.
    if bound && unsafe { libc::listen(socket.number(), 1) } == 0 {
        session.offer_socket.put(Some(socket));
    } else {
        give_up(session, Refusal::Memory);
    }
}

/// Looks for an offer, and attaches the session to rings that are what they have to be.
fn take_offer(session: &'static Session, fd: c_int) {
    if session.end().pinned.load(Ordering::SeqCst) != 0 {
        return stop(session);
    }
    if let Some(offer_connection) = offer_connection(session).filter(|_| session.end().owners.is_alone()) {
        without_calls(session, || take_offer_of(session, fd, offer_connection));
    }
}

fn take_offer_of(session: &'static Session, fd: c_int, offer_connection: c_int) {
    let received = match message::receive(offer_connection) {
        // It has connected, but not sent yet.
        Err(EAGAIN) => return,
        other => other.ok(),
    };
    let user = user_of(offer_connection);
    session.offer_connection.put(None);
    let Some((offer, descriptors)) = received else { return };
    let genuine = is_from_peer(fd, &offer, user).then_some(()).ok_or(Refusal::Offer);
    match genuine.and_then(|()| accept(session, fd, descriptors)) {
        Ok(()) => {
            offer.list(session);
            session.close_offer_socket();
        }
        Err(why) => page::counters().refuse(why),
    }
}

/// Returns the connection to the offer socket, if there is one.
fn offer_connection(session: &Session) -> Option<c_int> {
    if let Some(known) = session.offer_connection.number() {
        return Some(known);
    }
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (offer_socket, nowhere) = (session.offer_socket.number()?, core::ptr::null_mut());
    // accept(2) makes a socket and a file before it looks whether anybody has connected.
    if real::poll_one(offer_socket, libc::POLLIN) == 0 {
        return None;
    }
    // SAFETY: accept without an address.
    let made = Fd::adopt(unsafe { uncancelled::accept4(offer_socket, nowhere, core::ptr::null_mut(), flags) })?;
    Some(session.offer_connection.put_first(made))
}

/// Asks the kernel: the connection that the offer names must be this end's own, and its other end must
/// belong to the user who sent the offer.
fn is_from_peer(fd: c_int, offer: &Offer, user: Option<u32>) -> bool {
    let own = diag::owner(offer.client(), offer.server());
    let peer = diag::owner(offer.server(), offer.client());
    let (Ok(own), Ok(peer)) = (own, peer) else { return false };
    socket::cookie(fd) == Some(own.cookie) && user == Some(peer.uid)
}

/// Maps the memory and attaches the session.
fn accept(session: &'static Session, fd: c_int, [memory, own, peer]: [Fd; DESCRIPTORS]) -> Result<(), Refusal> {
    if !is_event(&own) || !is_event(&peer) {
        return Err(Refusal::Offer);
    }
    if !Session::reserve() {
        return Err(Refusal::Limit);
    }
    let Some(rings) = map_offered(&memory).filter(|rings| !rings.header().is_active()) else {
        Session::unreserve();
        return Err(Refusal::Offer);
    };
    drop(memory);
    let (own, peer, layout) = (own.hide(), peer.hide(), rings.layout);
    let is_complete = own.is_some() && peer.is_some();
    session.attach(fd, rings, own, peer);
    if !is_complete {
        // No room for another descriptor: the kernel's connection goes on.
        session.fall_back();
    }
    // The peer does not use the rings before, and not at all if they are closed by then.
    let is_shared = !session.end().owners.is_alone();
    if is_shared || !session.rings().is_some_and(|rings| rings.header.accept(&layout)) {
        session.close_rings();
    }
    Ok(())
}

/// Maps memory whose size cannot change, and whose header fits its size.
fn map_offered(memory: &Fd) -> Option<Memory> {
    let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: fcntl of a descriptor.
    let seals = unsafe { real::fcntl(memory.number(), libc::F_GET_SEALS, 0) };
    if seals < 0 || seals & needed != needed {
        return None;
    }
    // SAFETY: lseek of a descriptor; nobody uses its position.
    let length = usize::try_from(unsafe { libc::lseek(memory.number(), 0, libc::SEEK_END) }).ok()?;
    if !(Layout::bytes(Layout::SMALLEST)..=Layout::bytes(Layout::LARGEST)).contains(&length) {
        return None;
    }
    let mapped = Mmap::of_file(memory, length).ok()?;
    // SAFETY: the mapping has more than four words. The peer may change them, so they are read once.
    let words = core::array::from_fn(|i| unsafe { mapped.as_ptr().cast::<u32>().add(i).read_volatile() });
    Layout::check(words, length).map(|layout| Memory::new(mapped, layout))
}

/// Returns whether a descriptor is an eventfd(2): a write to anything else might wait.
fn is_event(event: &Fd) -> bool {
    let fd = event.number();
    let path = alloc::format!("/proc/self/fd/{fd}\0");
    let mut target = [0u8; 64];
    // SAFETY: the path ends with a zero octet; the buffer has that many octets.
    let n = unsafe { libc::readlink(path.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
    // SAFETY: fcntl of a descriptor.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    let is_event = target.get(..n.max(0) as usize).is_some_and(|target| target.starts_with(b"anon_inode:[eventfd]"));
    is_event && flags & libc::O_NONBLOCK != 0
}

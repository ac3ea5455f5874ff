// SPDX-License-Identifier: Apache-2.0

//! The acceptor's part: it makes the memory of the rings, and sends it to the connector.

use super::give_up;
use super::message::{self, address, unix_socket, user_of, Offer};
use crate::conn::earn::{self, Merits};
use crate::conn::{clients, identity, Session};
use crate::ring::Memory;
use crate::sys::errno::ENOENT;
use crate::sys::{diag, uncancelled, EventFd, Fd, Mmap};
use crate::telemetry::{page, Refusal};
use beeline_ring::{Header, Layout};
use core::sync::atomic::Ordering;
use libc::c_int;

/// A client that has not opened its offer socket after so many milliseconds does not answer. It may have had fewer
/// operations than the acceptor, or may not have run.
const ANSWER_LIMIT: u64 = 64;

/// Sends an offer if the connector has opened its offer socket.
pub fn try_offer(session: &'static Session, fd: c_int) {
    let _ = make_offer(session, fd);
}

/// Makes rings and sends them to the connector; None if it has no offer socket.
fn make_offer(session: &'static Session, fd: c_int) -> Option<()> {
    let (server, client) = session.identity().ends?;
    if !identity::has_ends(fd, server, client) {
        // The number is another connection now.
        session.merits.settle();
        return None;
    }
    identity::cookie_of(session, fd)?;
    let owner = match diag::owner(client, server) {
        Err(ENOENT) => {
            give_up(session, Refusal::Elsewhere);
            return None;
        }
        other => other.ok()?,
    };
    let merits = &session.merits;
    if !is_worth(merits, owner.client()) {
        return None;
    }
    let Some(socket) = connect_offer_socket(&owner) else {
        if merits.waited() >= ANSWER_LIMIT && !merits.unresponsive.swap(true, Ordering::Relaxed) {
            clients::failed(owner.client());
        }
        return None;
    };
    clients::answered(owner.client());
    send_offer(session, fd, &socket, Offer::new(server, client))
}

/// Returns whether a connection of a client is asked. A connection that is left out is asked after all if another
/// one of the client answers.
fn is_worth(merits: &Merits, client: u64) -> bool {
    if merits.left_out.load(Ordering::Relaxed) {
        return !clients::is_unresponsive(client);
    }
    let is_worth = merits.judged.swap(true, Ordering::Relaxed) || clients::is_worth(client);
    if !is_worth {
        merits.left_out.store(true, Ordering::Relaxed);
        page::counters().refuse(Refusal::NoAnswer);
    }
    is_worth
}

fn connect_offer_socket(owner: &diag::Owner) -> Option<Fd> {
    let socket = unix_socket()?;
    let (address, length) = address(owner.cookie);
    // SAFETY: the address has that length.
    let connected = unsafe { uncancelled::connect(socket.number(), core::ptr::from_ref(&address).cast(), length) == 0 };
    Some(socket).filter(|socket| connected && user_of(socket.number()) == Some(owner.uid))
}

/// Attaches this end first: from the moment of the offer the connector may use the rings.
fn send_offer(session: &'static Session, fd: c_int, socket: &Fd, offer: Offer) -> Option<()> {
    if !Session::reserve() {
        page::counters().refuse(Refusal::Limit);
        return None;
    }
    let Some((memory, rings, own, peer)) = make_all(earn::ring(session)) else {
        page::counters().refuse(Refusal::Memory);
        Session::unreserve();
        return None;
    };
    let descriptors = [&memory, &peer, &own].map(Fd::number);
    session.attach(fd, rings, Some(own), Some(peer));
    offer.list(session);
    // A child that was forked meanwhile has the connection without rings.
    if !session.end().owners.is_alone() || !message::send(socket, &offer, descriptors) {
        session.close_rings();
    }
    Some(())
}

/// Makes the memory of rings, which cannot shrink under the peer, and the events of both ends.
fn make_all(capacity: u32) -> Option<(Fd, Memory, Fd, Fd)> {
    let (file, mapped) = Mmap::sealed(c"beeline-ring", Layout::bytes(capacity))?;
    // SAFETY: the mapping is large enough, aligned, and no one else has it yet.
    unsafe { mapped.as_ptr().cast::<Header>().write(Header::new(capacity)) };
    let layout = Layout { capacity, version: beeline_ring::VERSION };
    Some((file, Memory::new(mapped, layout), EventFd::make()?, EventFd::make()?))
}

// SPDX-License-Identifier: Apache-2.0

//! Whether a descriptor still has the connection that its session was made for.
//!
//! A socket may be connected again, and a number may be closed and used again by a system call that the library does
//! not see. The library learns of it without a further system call in send and receive: by a number that the kernel has
//! just returned, by connect(2), and by an answer of the kernel that a ring does not expect.

use crate::conn::{offer, watch, Identity, Session};
use crate::sys::errno::{self, ENOTCONN};
use crate::sys::socket::{address, cookie, option};
use beeline_ring::Role;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use libc::c_int;

/// The cookie of a session for which it was not asked. No socket has it.
pub const UNKNOWN: u64 = 0;

/// Returns whether a descriptor is a connection between these addresses, at the server's end. The kernel does not
/// know the client any more when both ends have closed, or one has reset the connection.
pub fn has_ends(fd: c_int, server: SocketAddr, client: SocketAddr) -> bool {
    let is_clients = match address(fd, libc::getpeername) {
        Some(peer) => peer == client,
        None => errno::last() == ENOTCONN && option(fd, libc::SO_ACCEPTCONN) == Some(0),
    };
    is_clients && address(fd, libc::getsockname) == Some(server)
}

/// Returns the cookie of a session. An acceptor's is not asked for before it is needed, which is never for short
/// connections: until then the addresses show whether `fd` is its connection.
pub fn cookie_of(session: &Session, fd: c_int) -> Option<u64> {
    let known = session.cookie.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return Some(known);
    }
    let (server, client) = session.identity().ends?;
    let found = Some(fd).filter(|&fd| has_ends(fd, server, client)).and_then(cookie)?;
    session.cookie.store(found, Ordering::Relaxed);
    Some(found)
}

/// Returns whether a descriptor is the socket of a session.
pub fn is_socket_of(session: &Session, fd: c_int) -> bool {
    errno::preserve(|| cookie_of(session, fd).is_some_and(|known| cookie(fd) == Some(known)))
}

/// Resets a session whose socket connect(2) has taken from its connection. Without rings, it begins
/// as a new one. A connection that has had rings is on the kernel from then on.
pub fn reconnected(session: &'static Session) {
    let begins = offer::exclusively(session, || {
        session.close_offer_socket();
        let end = session.end();
        for direction in [&end.receive, &end.send] {
            direction.kernel.store(0, Ordering::Relaxed);
        }
        end.error.store(0, Ordering::Relaxed);
        session.merits.begin();
        session.suspect.store(false, Ordering::Relaxed);
        session.identify(Identity { role: Role::Connector, end, ends: None });
    });
    if begins {
        return;
    }
    let end = session.end();
    end.pinned.store(1, Ordering::SeqCst);
    session.leave_rings();
    for direction in [&end.receive, &end.send] {
        direction.leave();
    }
    end.error.store(0, Ordering::Relaxed);
    end.note();
    watch::resync_all(session);
    session.wake();
}

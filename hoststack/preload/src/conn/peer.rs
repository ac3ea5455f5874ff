// SPDX-License-Identifier: Apache-2.0

//! A peer that has ended without closing, because it was killed or its program has ended. The kernel would have reset
//! the connection if it had known that the peer has not read all of the ring. So this end behaves as after a reset.

use crate::conn::stream::unread;
use crate::conn::{Direction, Session};
use crate::sys::clock::{tick, ticks};
use crate::sys::errno::{EAGAIN, ECONNRESET, EFAULT, EINTR, ENOMEM, EPIPE};
use crate::sys::{real, Errno};
use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;

/// States of TCP in which the peer has ended (include/net/tcp_states.h): CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING.
const ENDED: [u8; 4] = [7, 8, 9, 11];

/// A peer that has not read for as long, in milliseconds, may be dead.
const UNREAD_LIMIT: u64 = 4;

/// The beginning of struct tcp_info, which the kernel cuts to the length that is asked for.
#[repr(C)]
#[derive(Default)]
struct TcpInfo {
    state: u8,
    flags: [u8; 7],
    numbers: [u32; 12],
    /// Milliseconds since the last acknowledgement, which a FIN is, too.
    last_ack: u32,
}

fn tcp_info(fd: c_int) -> TcpInfo {
    let mut info = TcpInfo::default();
    let mut length = size_of::<TcpInfo>() as libc::socklen_t;
    // SAFETY: TCP_INFO stores as many octets as the structure has.
    unsafe { real::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &mut length) };
    info
}

/// Looks whether the peer has ended with octets of this end unread, and resets the connection once. Returns
/// whether it has. Whoever sees the end of the kernel's connection calls it.
///
/// What came into the ring after the end would have been answered by a RST, too, but after a FIN: that is EPIPE.
pub fn notice(session: &Session, fd: c_int) -> bool {
    let Some(rings) = session.rings() else { return false };
    let end = session.end();
    // A peer that closes or shuts down says so first, and the kernel knows the rest.
    if rings.header.has_left(rings.peer()) || unread(session) == 0 || end.reset.load(Relaxed) != 0 {
        return false;
    }
    let info = tcp_info(fd);
    // A shutdown of this end's own reading looks like the end of the peer, but for the state. An error that the kernel
    // has to report is its own RST.
    let has_error = || real::poll_one(fd, 0) & libc::POLLERR != 0;
    if !ENDED.contains(&info.state) || has_error() || end.reset.swap(1, Relaxed) != 0 {
        return false;
    }
    let ended_at = ticks().saturating_sub(info.last_ack.into());
    // The clock that the kernel's timestamps are read by may be a tick behind theirs.
    let was_unread = end.send.oldest.load(Relaxed) <= ended_at + tick();
    end.error.store(if was_unread { ECONNRESET } else { EPIPE }.0, Relaxed);
    session.close_rings();
    session.suspect.store(true, Relaxed);
    real::shutdown(fd, libc::SHUT_RDWR);
    true
}

/// Makes the next send ask the kernel, if these events of the socket mean that the peer has ended.
pub fn suspect(session: &Session, fd: c_int, events: i16) {
    if means_end(session, fd, events) {
        session.suspect.store(true, Relaxed);
    }
}

/// Returns whether events of the socket mean that the peer has ended. After shutdown(2) of receiving the kernel
/// reports POLLRDHUP in any case, so the state of the connection says it.
pub fn means_end(session: &Session, fd: c_int, events: i16) -> bool {
    let by_peer = || session.end().shut.load(Relaxed) == 0 || ENDED.contains(&tcp_info(fd).state);
    events & (libc::POLLHUP | libc::POLLERR) != 0 || events & libc::POLLRDHUP != 0 && by_peer()
}

/// Returns whether the kernel is to be asked for the peer before a send, since it has not read any of `used`
/// octets up to now. A peer that reads is not asked for.
pub fn is_probe_due(direction: &Direction, head: u64, used: u64) -> bool {
    if used == 0 || direction.head.load(Relaxed) != head {
        direction.head.store(head, Relaxed);
        return false;
    }
    let now = ticks();
    let is_due = now >= direction.asked.load(Relaxed) + UNREAD_LIMIT;
    if is_due {
        direction.asked.store(now, Relaxed);
    }
    is_due
}

/// Notes that octets have come into an empty ring.
pub fn begin_waiting(direction: &Direction) {
    let now = ticks();
    direction.oldest.store(now, Relaxed);
    direction.asked.store(now, Relaxed);
}

/// Notes that the kernel itself has reset the connection, so that there is no second error.
pub fn is_reset(session: &Session) {
    session.end().reset.store(1, Relaxed);
    let _ = session.end().error.compare_exchange(ECONNRESET.0, 0, Relaxed, Relaxed);
}

/// Makes the next call return an error that the kernel has reported, and forgotten.
pub fn keep(session: &Session, error: Errno) {
    // The others are those of a call, not of the connection.
    if !matches!(error, EAGAIN | EFAULT | EINTR | ENOMEM | EPIPE) {
        session.end().error.store(error.0, Relaxed);
    }
}

/// Takes an error that was kept, as SO_ERROR does.
pub fn kept(session: &Session) -> Option<Errno> {
    let error = &session.end().error;
    // Most calls find nothing, and need not write.
    match error.load(Relaxed) {
        0 => None,
        _ => Some(Errno(error.swap(0, Relaxed))).filter(|&error| error.0 != 0),
    }
}

/// Leaves the error of a RST after a FIN: the FIN is what a receive returns.
pub fn kept_for_receive(session: &Session) -> Option<Errno> {
    match Errno(session.end().error.load(Relaxed)) {
        EPIPE => None,
        _ => kept(session),
    }
}

/// Leaves it to the kernel, which sends the signal: the connection is shut down.
pub fn kept_for_send(session: &Session) -> Option<Errno> {
    kept(session).filter(|&error| error != EPIPE)
}

/// Returns whether there is an error, for POLLERR.
pub fn has_error(session: &Session) -> bool {
    session.end().error.load(Relaxed) != 0
}

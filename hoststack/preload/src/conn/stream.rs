// SPDX-License-Identifier: Apache-2.0

//! Both directions of a session: what they have, which carrier they are on, and how they end.

use crate::conn::end::UNKNOWN;
use crate::conn::{recall, watch, Direction, Phase, Session, SHORT, WRITE_BITS};
use crate::ring::{Octets, Rings};
use crate::sys::errno::{self, ECONNRESET};
use crate::sys::{lock, real, socket, Errno, Outcome};
use crate::telemetry::page;
use beeline_ring::Violation;
use core::sync::atomic::Ordering;
use libc::{c_int, MSG_DONTWAIT};

pub fn blocks(session: &Session, fd: c_int, flags: c_int) -> bool {
    flags & MSG_DONTWAIT == 0 && !is_nonblocking(session, fd)
}

/// Returns whether a session's socket has O_NONBLOCK.
fn is_nonblocking(session: &Session, fd: c_int) -> bool {
    let known = &session.end().nonblocking;
    if known.load(Ordering::Relaxed) == UNKNOWN {
        // SAFETY: fcntl of a descriptor.
        let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
        known.store(u32::from(flags & libc::O_NONBLOCK != 0), Ordering::Relaxed);
    }
    known.load(Ordering::Relaxed) != 0
}

/// Returns whether a direction is the kernel's for good, so that the kernel's own call may wait.
pub fn is_kernels(session: &Session, direction: &Direction) -> bool {
    let end = session.end();
    let never_attaches = || {
        let pinned = end.pinned.load(Ordering::SeqCst) != 0;
        pinned && !session.upgrading.load(Ordering::SeqCst) && !session.is_attached()
    };
    direction.phase() == Phase::After || never_attaches()
}

/// Returns whether something else than the kernel's connection may become ready.
pub fn needs_events(session: &Session) -> bool {
    let end = session.end();
    !is_kernels(session, &end.receive) || !is_kernels(session, &end.send)
}

/// Leaves a connection to the kernel on which a thread has to wait and cannot: events need descriptors.
pub fn leave_to_kernel(session: &'static Session) {
    let end = session.end();
    session.fall_back();
    let Some(rings) = session.rings() else {
        // Another thread may be about to attach the session: it is not for long.
        return lock::pause();
    };
    let is_over = |direction: &Direction| {
        let left = rings.receive().available(direction.index.load(Ordering::Relaxed), rings.capacity);
        matches!(left, Ok((0, true)))
    };
    end.receive.with_lock(SHORT, |_| {
        if is_over(&end.receive) {
            end.receive.enter(Phase::After);
        }
    });
    end.send.leave();
    end.note();
    watch::resync_all(session);
}

pub fn octets(rings: &Rings, sending: bool) -> Octets {
    let producer = if sending { rings.role } else { rings.peer() };
    Octets { at: rings.octets(producer), capacity: rings.capacity }
}

/// Resets a connection whose peer does what it must not.
pub fn break_off(session: &'static Session, fd: c_int, _: Violation) -> Errno {
    page::counters().violations.add(1);
    reset_at_close(fd);
    cut_off(session, fd)
}

/// Ends a connection at both ends, as a RST does.
pub fn cut_off(session: &'static Session, fd: c_int) -> Errno {
    session.close_rings();
    session.end().receive.enter(Phase::After);
    session.suspect.store(true, Ordering::Relaxed);
    real::shutdown(fd, libc::SHUT_RDWR);
    ECONNRESET
}

/// Makes the kernel answer with a RST when the socket is closed, as it does with unread data.
pub fn reset_at_close(fd: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let (value, length) = (core::ptr::from_ref(&linger).cast(), size_of::<libc::linger>());
    // SAFETY: a linger structure, as SO_LINGER takes.
    unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, length as libc::socklen_t) };
}

/// Returns the number of octets that a receive would get at once.
pub fn queued(session: &Session, fd: c_int) -> usize {
    let direction = &session.end().receive;
    let by_ring = session.rings().filter(|_| direction.phase() != Phase::After).map_or(0, |rings| {
        let head = direction.index.load(Ordering::Relaxed);
        rings.receive().available(head, rings.capacity).map_or(0, |(n, _)| n)
    });
    by_ring as usize + socket::queued(fd)
}

/// Returns the number of octets that the peer has not taken from the ring.
pub fn unread(session: &Session) -> usize {
    let direction = &session.end().send;
    session.rings().map_or(0, |rings| {
        let tail = direction.index.load(Ordering::Relaxed);
        rings.send().free(tail, rings.capacity).map_or(0, |free| (rings.capacity - free) as usize)
    })
}

/// Does shutdown(2). What the ring has is received before the kernel's end of the connection.
pub fn shut_down(session: &'static Session, fd: c_int, how: c_int) -> Outcome {
    let direction = &session.end().send;
    let phase = direction.phase();
    let end = || {
        if how != libc::SHUT_RD {
            if let Some(rings) = session.rings() {
                recall::give(session, fd, &rings);
                rings.send().close();
                // The peer takes a FIN without it for that of an end that was killed.
                rings.header.leave(rings.role);
            }
            // Also without rings, which may come yet.
            direction.enter(Phase::After);
        }
        if how != libc::SHUT_WR {
            session.end().shut.store(1, Ordering::Relaxed);
        }
        errno::outcome(real::shutdown(fd, how) as isize)
    };
    let result = direction.with_lock(SHORT, |_| end()).unwrap_or_else(end);
    if direction.phase() != phase {
        session.end().note();
        watch::resync(session, WRITE_BITS);
    }
    result
}

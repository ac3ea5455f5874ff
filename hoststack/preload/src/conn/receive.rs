// SPDX-License-Identifier: Apache-2.0

//! One attempt to receive: from the kernel's connection, from the ring, and from both where one follows the other.

use crate::conn::peer::{self, keep, kept_for_receive};
use crate::conn::readiness::enough;
use crate::conn::stream::{break_off, is_kernels, octets};
use crate::conn::{identity, recall, watch, Phase, Session, Sink, READ_BITS};
use crate::ring::Rings;
use crate::sys::errno::{self, EAGAIN, ECONNRESET};
use crate::sys::{real, uncancelled, Errno, Outcome};
use crate::telemetry::page;
use beeline_ring::Violation;
use core::sync::atomic::Ordering;
use libc::{c_int, MSG_DONTWAIT, MSG_PEEK};

/// The descriptor is not the session's socket any more. No error of the kernel has this number.
pub const OTHER_FILE: Errno = Errno(i32::MAX);

/// Who has the lock does not go on: EAGAIN, also for a call that would wait.
pub const STUCK: Errno = Errno(i32::MAX - 1);

/// What one carrier of the stream, kernel or ring, gave.
enum Part {
    /// The end of the attempt.
    Last(Outcome),
    /// The last octets of this carrier, which may be none. The next one goes on.
    Crossing(usize),
}

/// Tries once. It may also return STUCK, after `pauses`, and OTHER_FILE.
pub fn try_once(session: &'static Session, fd: c_int, sink: &impl Sink, pauses: u32) -> Outcome {
    let direction = &session.end().receive;
    let before = direction.phase();
    if is_kernels(session, direction) {
        return after_ring(session, fd, sink).inspect_err(|&error| note_reset(session, error));
    }
    let Some(result) = direction.with_lock(pauses, |_| receive(session, fd, sink)) else {
        // Another process of this end is stopped in the middle of a receive. A program that waits for edges gets one.
        session.wake();
        return Err(STUCK);
    };
    if result == Err(EAGAIN) {
        recall::answer(session, fd);
    }
    if let Err(error) = result {
        note_reset(session, error);
    }
    let now = direction.phase();
    if now != before {
        session.end().note();
    }
    // A program that has met the end knows it.
    let met_end = result == Ok(0) && sink.length() > 0 || result.is_err_and(|error| error != EAGAIN);
    if now != before && now == Phase::After && !met_end {
        report_again(session, fd);
    }
    result
}

fn note_reset(session: &Session, error: Errno) {
    if error == ECONNRESET {
        peer::is_reset(session);
    }
}

/// Makes the kernel report what it has after the ring, also the end: a program that got less than it asked
/// for waits for the next edge, and that edge may be past.
fn report_again(session: &'static Session, fd: c_int) {
    // A receive would take the error of the socket, which poll(2) reports, too.
    if real::poll_one(fd, libc::POLLIN) != 0 {
        watch::resync(session, READ_BITS);
    }
}

/// Goes from one carrier to the next within one call: a program may take less than it asked for as the sign
/// that there is no more.
fn receive(session: &'static Session, fd: c_int, sink: &impl Sink) -> Outcome {
    let direction = &session.end().receive;
    let Some(rings) = session.rings().filter(|_| !sink.is_urgent()) else {
        return after_ring(session, fd, sink);
    };
    let first = direction.phase();
    let (mut phase, mut done) = (first, 0);
    loop {
        let rest = sink.after(done);
        let part = match phase {
            Phase::Before => before_ring(session, fd, &rings, &rest),
            Phase::Ring => by_ring(session, fd, &rings, &rest),
            Phase::After => Ok(Part::Last(after_ring(session, fd, &rest))),
        };
        match part {
            Err(violation) => return Err(break_off(session, fd, violation)),
            Ok(Part::Last(Ok(n))) => return Ok(done + n),
            Ok(Part::Last(Err(error))) if done == 0 => return Err(error),
            Ok(Part::Last(Err(error))) => {
                keep(session, error);
                return Ok(done);
            }
            Ok(Part::Crossing(n)) => {
                done += n;
                // Octets of the kernel that stay there hide those that it has after the ring.
                let hidden = sink.keeps() && phase == Phase::Ring && first == Phase::Before;
                phase = match phase {
                    Phase::Before => Phase::Ring,
                    _ => Phase::After,
                };
                if !sink.keeps() {
                    direction.enter(phase);
                }
                if done > 0 && (hidden || sink.after(done).length() == 0) {
                    return Ok(done);
                }
            }
        }
    }
}

/// Receives octets that the peer sent before it moved to the ring.
///
/// What the kernel has may include octets that the peer sent after it left the ring again. So they are counted first:
/// if the peer has not begun after that, they are all from before. Only a peek counts them: FIONREAD need not count all
/// octets of a socket in a sockmap.
fn before_ring(session: &'static Session, fd: c_int, rings: &Rings, sink: &impl Sink) -> Result<Part, Violation> {
    let mut missing = missing_before_ring(session, rings)?;
    if missing.is_none() && rings.receive().available(0, rings.capacity)? == (0, true) {
        // The ring was closed before anything came into it.
        return Ok(Part::Crossing(0));
    }
    if missing.is_none() {
        let counted = sink.count(fd);
        missing = missing_before_ring(session, rings)?;
        match (missing, counted) {
            (None, Ok(n)) if n > 0 => return Ok(Part::Last(by_kernel(session, fd, &sink.at_most(n)))),
            (None, other) if sink.length() == 0 => return Ok(Part::Last(other)),
            (None, Ok(_)) => return Ok(Part::Last(kept_for_receive(session).map_or(Ok(0), Err))),
            (None, Err(EAGAIN)) => return Ok(Part::Last(Err(kept_for_receive(session).unwrap_or(EAGAIN)))),
            (None, other) => return Ok(Part::Last(other)),
            (Some(_), Err(error)) => keep(session, error),
            (Some(_), Ok(_)) => {}
        }
    }
    let missing = missing.unwrap_or(0);
    if missing == 0 {
        return Ok(Part::Crossing(0));
    }
    let result = by_kernel(session, fd, &sink.at_most(missing as usize));
    match result {
        Ok(n) if n as u64 == missing => {
            // Sleepers were not woken for the ring as long as octets before it were missing.
            session.wake();
            Ok(Part::Crossing(n))
        }
        other => Ok(Part::Last(other)),
    }
}

/// Returns the number of octets that the kernel has to deliver before the ring; None if the peer
/// has not moved to it.
fn missing_before_ring(session: &Session, rings: &Rings) -> Result<Option<u64>, Violation> {
    let received = session.end().receive.kernel.load(Ordering::Relaxed);
    rings.receive().start().map(|start| start.checked_sub(received).ok_or(Violation)).transpose()
}

/// Asks the kernel's connection for an octet without taking it: 0 is its end.
pub fn peek(fd: c_int) -> Outcome {
    let mut octet = 0u8;
    let place = core::ptr::from_mut(&mut octet).cast();
    // SAFETY: one octet of this function's own.
    errno::outcome(unsafe { uncancelled::recv(fd, place, 1, MSG_PEEK | MSG_DONTWAIT) })
}

/// Receives from the kernel's connection without waiting, and counts.
fn by_kernel(session: &Session, fd: c_int, sink: &impl Sink) -> Outcome {
    let n = sink.by_kernel(fd)?;
    if !sink.keeps() && !sink.is_urgent() {
        session.end().receive.kernel.fetch_add(n as u64, Ordering::Relaxed);
    }
    Ok(n)
}

/// Like `by_kernel`, for what follows the ring, or if there is none. As on the kernel octets come before an error.
fn after_ring(session: &Session, fd: c_int, sink: &impl Sink) -> Outcome {
    let result = by_kernel(session, fd, sink);
    match result {
        Ok(n) if n > 0 || sink.length() == 0 => result,
        Ok(_) => kept_for_receive(session).map_or_else(|| peer_ended(session, fd), Err),
        Err(EAGAIN) => Err(kept_for_receive(session).unwrap_or(EAGAIN)),
        Err(_) => result,
    }
}

fn by_ring(session: &'static Session, fd: c_int, rings: &Rings, sink: &impl Sink) -> Result<Part, Violation> {
    let direction = &session.end().receive;
    loop {
        if session.end().recalled.load(Ordering::Relaxed) != 0 {
            if let Some(result) = recall::receive(session, rings, fd, sink)? {
                return Ok(Part::Last(result));
            }
        }
        let head = direction.index.load(Ordering::Relaxed);
        let (available, closed) = rings.receive().available(head, rings.capacity)?;
        if available > 0 {
            return from_ring(session, rings, sink, head, available);
        }
        if closed {
            return Ok(Part::Crossing(0));
        }
        if let Some(result) = ask_kernel(session, fd, rings) {
            return Ok(Part::Last(result));
        }
    }
}

/// Takes some of the octets that the ring has. The last ones of a closed ring are a crossing at once, not at
/// the next call: until then nobody would ask the kernel.
fn from_ring(
    session: &'static Session,
    rings: &Rings,
    sink: &impl Sink,
    head: u64,
    available: u64,
) -> Result<Part, Violation> {
    let n = match sink.by_ring(&octets(rings, false), head, available as usize) {
        Ok(n) => n,
        Err(error) => return Ok(Part::Last(Err(error))),
    };
    let head = head + n as u64;
    if !sink.keeps() {
        consume(session, rings, head, available - n as u64);
        page::counters().received.add(n as u64);
    }
    Ok(match rings.receive().available(head, rings.capacity)? {
        (0, true) => Part::Crossing(n),
        _ => Part::Last(Ok(n)),
    })
}

fn consume(session: &Session, rings: &Rings, head: u64, left: u64) {
    session.end().receive.index.store(head, Ordering::Relaxed);
    rings.receive().release(head);
    if rings.capacity - left >= enough(rings.capacity) && rings.receive().wake_producer() {
        session.wake_peer();
    }
}

/// Looks for the end of the connection while the ring is empty: None if the ring has become readable
/// meanwhile, since what the peer wrote before its end comes first.
fn ask_kernel(session: &'static Session, fd: c_int, rings: &Rings) -> Option<Outcome> {
    let kept = kept_for_receive(session);
    let result = kept.map_or_else(|| peek(fd), Err);
    if session.is_readable(rings) || rings.receive().is_closed() {
        if let Err(error) = result {
            keep(session, error);
        }
        return None;
    }
    if result != Err(EAGAIN) && kept.is_none() && !identity::is_socket_of(session, fd) {
        return Some(Err(OTHER_FILE));
    }
    match result {
        // Octets that someone sent past the library, such as a program without it that inherited the socket.
        Ok(1..) => Some(Err(break_off(session, fd, Violation))),
        Ok(0) => Some(peer_ended(session, fd)),
        other => Some(other),
    }
}

/// Returns the result of a receive after the kernel's FIN.
fn peer_ended(session: &Session, fd: c_int) -> Outcome {
    // What is sent from now on is for the kernel, which may answer with an error.
    peer::suspect(session, fd, libc::POLLRDHUP);
    peer::notice(session, fd);
    if let Some(rings) = session.rings().filter(|rings| !rings.header.has_left(rings.peer())) {
        // If the peer's number is another connection now, what it sends there must not come here.
        rings.receive().close();
    }
    kept_for_receive(session).map_or(Ok(0), Err)
}

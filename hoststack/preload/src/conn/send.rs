// SPDX-License-Identifier: Apache-2.0

//! One attempt to send: by the kernel's connection, or by the ring.

use crate::conn::peer::{self, kept_for_send};
use crate::conn::stream::{break_off, is_kernels, leave_to_kernel, octets};
use crate::conn::{order, recall, watch, Phase, Session, Source, SHORT, WRITE_BITS};
use crate::ring::Rings;
use crate::sys::errno::{EAGAIN, ECONNRESET};
use crate::sys::{real, Outcome};
use crate::telemetry::page;
use beeline_ring::{Published, Violation};
use core::sync::atomic::Ordering;
use libc::c_int;

/// Sends what goes at once.
pub fn attempt(session: &'static Session, fd: c_int, source: &impl Source) -> Outcome {
    let direction = &session.end().send;
    let before = direction.phase();
    if is_kernels(session, direction) {
        return kernel_send(session, fd, source).inspect_err(|&error| {
            if error == ECONNRESET {
                peer::is_reset(session);
            }
        });
    }
    let result = direction.with_lock(SHORT, |stolen| {
        if stolen {
            recover(session);
        }
        send_locked(session, fd, source)
    });
    let result = result.unwrap_or_else(|| {
        // Another process of this end is stopped in the middle of a send. What it has not published yet it sends by the
        // kernel, too, since it finds the ring closed.
        leave_to_kernel(session);
        kernel_send(session, fd, source)
    });
    if result == Err(ECONNRESET) {
        peer::is_reset(session);
    }
    if direction.phase() != before {
        session.end().note();
        watch::each_watch(session, |epoll, slot| epoll.moved(slot, session, WRITE_BITS, false));
    }
    result
}

/// Goes on after another process of this end was killed while it sent: it may have published octets and not
/// counted them, nor woken the peer.
fn recover(session: &Session) {
    let direction = &session.end().send;
    let Some(rings) = session.rings().filter(|_| direction.phase() == Phase::Ring) else { return };
    if let Ok((published, _)) = rings.send().available(direction.index.load(Ordering::Relaxed), rings.capacity) {
        direction.index.fetch_add(published, Ordering::Relaxed);
    }
    session.wake_peer();
}

fn send_locked(session: &'static Session, fd: c_int, source: &impl Source) -> Outcome {
    let direction = &session.end().send;
    loop {
        let rings = session.rings();
        match (direction.phase(), rings) {
            (Phase::Before, Some(rings)) if !source.is_urgent() && may_begin(session, &rings) => {
                rings.send().begin(direction.kernel.load(Ordering::Relaxed));
                direction.enter(Phase::Ring);
            }
            (Phase::Ring, Some(rings)) if !source.is_urgent() => match ring_send(session, fd, &rings, source) {
                Ok(Some(result)) => return result,
                Ok(None) => {
                    recall::give(session, fd, &rings);
                    direction.enter(Phase::After);
                }
                Err(violation) => return Err(break_off(session, fd, violation)),
            },
            _ => return kernel_send(session, fd, source),
        }
    }
}

/// Returns whether the ring can carry what follows.
fn may_begin(session: &Session, rings: &Rings) -> bool {
    rings.header.is_active() && !rings.send().is_closed() && session.end().pinned.load(Ordering::Relaxed) == 0
}

fn kernel_send(session: &Session, fd: c_int, source: &impl Source) -> Outcome {
    if let Some(error) = kept_for_send(session) {
        return Err(error);
    }
    let result = source.by_kernel(fd);
    let is_short = result.map_or_else(|error| error == EAGAIN, |n| n < source.length());
    if is_short {
        session.found_full();
    }
    let n = result?;
    if !source.is_urgent() {
        by_kernel(session, n as u64);
    }
    order::sent(session);
    Ok(n)
}

/// Counts octets that the kernel's connection has taken.
pub fn by_kernel(session: &Session, count: u64) {
    session.end().send.kernel.fetch_add(count, Ordering::Relaxed);
}

/// Puts octets into the ring; None if it is closed, and the kernel's connection goes on.
fn ring_send(
    session: &'static Session,
    fd: c_int,
    rings: &Rings,
    source: &impl Source,
) -> Result<Option<Outcome>, Violation> {
    let direction = &session.end().send;
    let tail = direction.index.load(Ordering::Relaxed);
    let mut free = rings.send().free(tail, rings.capacity)?;
    let used = rings.capacity - free;
    let asks = peer::is_probe_due(direction, tail.wrapping_sub(used), used) || may_have_ended(session, rings);
    if asks && ended(session, fd) {
        rings.send().close();
        return Ok(None);
    }
    let wanted = source.length();
    if wanted as u64 > free {
        // The program may wait for EPOLLOUT after a short send, as on the kernel, and only then.
        session.await_room(rings);
        free = rings.send().free(tail, rings.capacity)?;
    }
    let room = wanted.min(free as usize);
    if room == 0 {
        return Ok(match rings.send().is_closed() {
            true => None,
            false if wanted == 0 => Some(Ok(0)),
            false => Some(Err(EAGAIN)),
        });
    }
    if used == 0 {
        rings.send().set_behind(order::is_behind(session));
    }
    let octets = octets(rings, true);
    let count = match source.by_ring(&octets, tail, room) {
        Ok(count) => count,
        Err(error) => return Ok(Some(Err(error))),
    };
    if rings.send().publish(tail, tail + count as u64)? == Published::Closed {
        recall::give(session, fd, rings);
        return Ok(source.rescue(fd, &octets, tail, count).inspect(|_| direction.enter(Phase::After)));
    }
    direction.index.store(tail + count as u64, Ordering::Relaxed);
    if used == 0 {
        peer::begin_waiting(direction);
    }
    page::counters().sent.add(count as u64);
    if rings.send().wake_consumer() {
        session.wake_peer();
    }
    Ok(Some(Ok(count)))
}

/// Returns whether there is a reason to ask the kernel for the peer.
fn may_have_ended(session: &Session, rings: &Rings) -> bool {
    session.suspect.load(Ordering::Relaxed) || rings.header.has_left(rings.peer())
}

/// Asks the kernel whether the peer has closed or reset the connection. The stream then goes on there, and the
/// kernel answers as it would without rings.
fn ended(session: &Session, fd: c_int) -> bool {
    let ended = peer::means_end(session, fd, real::poll_or_suspect(fd, libc::POLLRDHUP));
    if ended {
        peer::notice(session, fd);
    }
    ended
}

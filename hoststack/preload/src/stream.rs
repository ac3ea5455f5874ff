// SPDX-License-Identifier: Apache-2.0

//! Sending and receiving on a session: by the kernel's connection, by the ring, and where one follows the other.

use crate::parts::{Octets, Parts};
use crate::session::{enough, Rings, Session};
use crate::side::Phase;
use crate::{counters, offer, real, wait};
use beeline_ring::{Published, Violation};
use core::sync::atomic::Ordering;
use libc::{c_int, EAGAIN, MSG_DONTWAIT, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};

pub type Outcome = Result<usize, i32>;

/// receive is recv(2) on a session.
pub fn receive(session: &'static Session, fd: c_int, parts: Parts, flags: c_int) -> Outcome {
    offer::before(session, fd);
    let wanted = parts.length();
    let mut done = 0;
    loop {
        let rest = parts.after(done);
        match attempt_receive(session, fd, &rest, flags) {
            Ok(n) => {
                done += n;
                let all = flags & MSG_WAITALL != 0 && flags & (MSG_PEEK | MSG_DONTWAIT) == 0 && n > 0 && done < wanted;
                if !all {
                    return Ok(done).inspect(|_| offer::after(session, fd));
                }
            }
            Err(EAGAIN) if blocks(session, flags) => {
                if let Err(error) = wait::readable(session, fd) {
                    return if done > 0 { Ok(done) } else { Err(error) };
                }
            }
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
    }
}

/// send is send(2) on a session. A blocking one returns when all octets are sent.
pub fn send(session: &'static Session, fd: c_int, parts: Parts, flags: c_int) -> Outcome {
    offer::before(session, fd);
    let wanted = parts.length();
    let mut done = 0;
    loop {
        match attempt_send(session, fd, &parts.after(done), flags) {
            Ok(n) => {
                done += n;
                if done >= wanted || !blocks(session, flags) {
                    return Ok(done).inspect(|_| offer::after(session, fd));
                }
            }
            Err(EAGAIN) if blocks(session, flags) => {
                if let Err(error) = wait::writable(session, fd) {
                    return if done > 0 { Ok(done) } else { Err(error) };
                }
            }
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
    }
}

fn blocks(session: &Session, flags: c_int) -> bool {
    flags & MSG_DONTWAIT == 0 && session.side().nonblocking.load(Ordering::Relaxed) == 0
}

fn attempt_receive(session: &'static Session, fd: c_int, parts: &Parts, flags: c_int) -> Outcome {
    let side = session.side();
    side.receive.with_lock(|_| receive_locked(session, fd, parts, flags))
}

fn receive_locked(session: &'static Session, fd: c_int, parts: &Parts, flags: c_int) -> Outcome {
    let way = &session.side().receive;
    let Some(rings) = session.rings() else {
        return kernel_receive(session, fd, parts, flags);
    };
    if flags & MSG_OOB != 0 {
        return kernel_receive(session, fd, parts, flags);
    }
    loop {
        match way.phase() {
            Phase::After => return kernel_receive(session, fd, parts, flags),
            Phase::Before => match receive_before(session, fd, &rings, parts, flags) {
                Err(violation) => return Err(break_off(session, fd, violation)),
                Ok(Some(result)) => return result,
                Ok(None) => way.enter(Phase::Ring),
            },
            Phase::Ring => match ring_receive(session, &rings, parts, flags) {
                Err(violation) => return Err(break_off(session, fd, violation)),
                Ok(Some(n)) => return Ok(n),
                Ok(None) if rings.receive().is_closed() && !session.is_readable(&rings) => way.enter(Phase::After),
                Ok(None) => {
                    if let Some(result) = ask_kernel(session, fd, &rings) {
                        return result;
                    }
                }
            },
        }
    }
}

/// receive_before receives octets that the peer sent before it moved to the ring; None if that is the next.
///
/// What the kernel has may include octets that the peer sent after it left the ring again. So it is asked for the
/// number of octets first: if the peer has not begun after that, they are all from before.
fn receive_before(
    session: &'static Session,
    fd: c_int,
    rings: &Rings,
    parts: &Parts,
    flags: c_int,
) -> Result<Option<Outcome>, Violation> {
    let queued = kernel_queue(fd);
    let Some(missing) = missing_before_ring(session, rings)? else {
        if queued > 0 {
            return Ok(Some(kernel_receive(session, fd, &parts.at_most(queued), flags)));
        }
        return empty_before(session, fd, rings);
    };
    if missing == 0 {
        return Ok(None);
    }
    let result = kernel_receive(session, fd, &parts.at_most(missing as usize), flags);
    if missing_before_ring(session, rings)? == Some(0) {
        // Sleepers were not woken for the ring as long as octets before it were missing.
        session.wake();
    }
    Ok(Some(result))
}

/// empty_before is for a kernel's connection without octets. The peer may have moved to the ring, and even have
/// closed, since it was asked.
fn empty_before(session: &Session, fd: c_int, rings: &Rings) -> Result<Option<Outcome>, Violation> {
    let result = peek(fd);
    match missing_before_ring(session, rings)? {
        Some(0) => Ok(None),
        Some(_) => Ok(Some(Err(EAGAIN))),
        None if matches!(result, Ok(1..)) => Ok(Some(Err(EAGAIN))),
        None => Ok(Some(result)),
    }
}

/// missing_before_ring is the number of octets that the kernel has to deliver before the ring; None if the peer
/// has not moved to it.
fn missing_before_ring(session: &Session, rings: &Rings) -> Result<Option<u64>, Violation> {
    let received = session.side().receive.kernel.load(Ordering::Relaxed);
    rings.receive().start().map(|start| start.checked_sub(received).ok_or(Violation)).transpose()
}

/// kernel_queue is the number of octets that the kernel's connection has for this end.
pub fn kernel_queue(fd: c_int) -> usize {
    let mut count: c_int = 0;
    // SAFETY: FIONREAD stores a number.
    unsafe { real::ioctl(fd, libc::FIONREAD, core::ptr::from_mut(&mut count) as usize) };
    count as usize
}

/// peek asks the kernel's connection for an octet without taking it: 0 is its end.
fn peek(fd: c_int) -> Outcome {
    let mut octet = 0u8;
    let place = core::ptr::from_mut(&mut octet).cast();
    // SAFETY: one octet of this function's own.
    real::outcome(unsafe { real::recv(fd, place, 1, MSG_PEEK | MSG_DONTWAIT) })
}

/// kernel_receive receives from the kernel's connection without waiting, and counts.
fn kernel_receive(session: &Session, fd: c_int, parts: &Parts, flags: c_int) -> Outcome {
    let flags = flags & !MSG_WAITALL | MSG_DONTWAIT;
    // SAFETY: the buffers are the program's, for this call.
    let n = parts.message(|m| real::outcome(unsafe { real::recvmsg(fd, m, flags) }))?;
    if flags & (MSG_PEEK | MSG_OOB) == 0 {
        session.side().receive.kernel.fetch_add(n as u64, Ordering::Relaxed);
    }
    Ok(n)
}

/// ring_receive takes octets from the ring; None if it is empty.
fn ring_receive(session: &Session, rings: &Rings, parts: &Parts, flags: c_int) -> Result<Option<usize>, Violation> {
    let way = &session.side().receive;
    let head = way.index.load(Ordering::Relaxed);
    let (available, _) = rings.receive().available(head, rings.capacity)?;
    let count = parts.length().min(available as usize);
    if available == 0 {
        return Ok(None);
    }
    if flags & MSG_TRUNC == 0 {
        octets(rings, false).get(head, parts, count);
    }
    if flags & MSG_PEEK == 0 {
        consume(session, rings, head + count as u64, available - count as u64);
    }
    Ok(Some(count))
}

fn consume(session: &Session, rings: &Rings, head: u64, left: u64) {
    session.side().receive.index.store(head, Ordering::Relaxed);
    rings.receive().release(head);
    counters::RECEIVED.add(1);
    if rings.capacity - left >= enough(rings.capacity) && rings.receive().wake_producer() {
        session.wake_peer();
    }
}

fn octets(rings: &Rings, sending: bool) -> Octets {
    let producer = if sending { rings.role } else { rings.peer() };
    Octets { at: rings.octets(producer), capacity: rings.capacity }
}

/// ask_kernel looks for the end of the connection while the ring is empty: None if the ring has become readable
/// meanwhile, since what the peer wrote before its end comes first.
fn ask_kernel(session: &'static Session, fd: c_int, rings: &Rings) -> Option<Outcome> {
    let side = session.side();
    let stored = side.error.swap(0, Ordering::Relaxed);
    let result = match stored {
        0 => peek(fd),
        error => Err(error),
    };
    if session.is_readable(rings) || rings.receive().is_closed() {
        if let Err(error) = result {
            side.error.store(if error == EAGAIN { 0 } else { error }, Ordering::Relaxed);
        }
        return None;
    }
    match result {
        // Octets that someone sent past the library, such as a program without it that inherited the socket.
        Ok(1..) => Some(Err(break_off(session, fd, Violation))),
        other => Some(other),
    }
}

/// break_off resets a connection whose peer does what it must not.
fn break_off(session: &'static Session, fd: c_int, _: Violation) -> i32 {
    counters::VIOLATIONS.add(1);
    reset_at_close(fd);
    let side = session.side();
    session.close_rings();
    side.receive.enter(Phase::After);
    session.suspect.store(true, Ordering::Relaxed);
    // SAFETY: shutdown of a number.
    unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
    libc::ECONNRESET
}

/// reset_at_close has the kernel answer with a RST when the socket is closed, as it does with unread data.
pub fn reset_at_close(fd: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let (value, length) = (core::ptr::from_ref(&linger).cast(), size_of::<libc::linger>());
    // SAFETY: a linger structure, as SO_LINGER takes.
    unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, length as libc::socklen_t) };
}

fn attempt_send(session: &'static Session, fd: c_int, parts: &Parts, flags: c_int) -> Outcome {
    let way = &session.side().send;
    let before = way.phase();
    let result = way.with_lock(|stolen| {
        if stolen {
            recover(session);
        }
        send_locked(session, fd, parts, flags)
    });
    if way.phase() != before {
        resync(session);
    }
    result
}

/// recover goes on after another process of this end was killed while it sent: it may have published octets and not
/// counted them, nor woken the peer.
fn recover(session: &Session) {
    let way = &session.side().send;
    let Some(rings) = session.rings().filter(|_| way.phase() == Phase::Ring) else { return };
    if let Ok((published, _)) = rings.send().available(way.index.load(Ordering::Relaxed), rings.capacity) {
        way.index.fetch_add(published, Ordering::Relaxed);
    }
    session.wake_peer();
}

/// resync tells the epoll instances who knows now whether the session is writable.
fn resync(session: &'static Session) {
    let watches = session.watches.lock().clone();
    for (epoll, slot) in watches {
        epoll.resync(slot);
    }
}

fn send_locked(session: &'static Session, fd: c_int, parts: &Parts, flags: c_int) -> Outcome {
    let way = &session.side().send;
    loop {
        let rings = session.rings();
        match (way.phase(), rings) {
            (Phase::Before, Some(rings)) if may_begin(session, &rings, flags) => {
                rings.send().begin(way.kernel.load(Ordering::Relaxed));
                way.enter(Phase::Ring);
            }
            (Phase::Ring, Some(rings)) if flags & MSG_OOB == 0 => match ring_send(session, fd, &rings, parts) {
                Ok(Some(result)) => return result,
                Ok(None) => way.enter(Phase::After),
                Err(violation) => return Err(break_off(session, fd, violation)),
            },
            _ => return kernel_send(session, fd, parts, flags),
        }
    }
}

/// may_begin reports whether the ring can carry what follows.
fn may_begin(session: &Session, rings: &Rings, flags: c_int) -> bool {
    rings.header.is_active()
        && !rings.send().is_closed()
        && flags & MSG_OOB == 0
        && session.side().stays.load(Ordering::Relaxed) == 0
}

fn kernel_send(session: &Session, fd: c_int, parts: &Parts, flags: c_int) -> Outcome {
    let flags = flags | MSG_DONTWAIT;
    // SAFETY: the buffers are the program's, for this call.
    let n = parts.message(|m| real::outcome(unsafe { real::sendmsg(fd, m, flags) }))?;
    if flags & MSG_OOB == 0 {
        session.side().send.kernel.fetch_add(n as u64, Ordering::Relaxed);
    }
    Ok(n)
}

/// ring_send puts octets into the ring; None if it is closed, and the kernel's connection goes on.
fn ring_send(session: &'static Session, fd: c_int, rings: &Rings, parts: &Parts) -> Result<Option<Outcome>, Violation> {
    if ended(session, fd, rings) {
        rings.send().close();
        return Ok(None);
    }
    let way = &session.side().send;
    let tail = way.index.load(Ordering::Relaxed);
    let mut free = rings.send().free(tail, rings.capacity)?;
    if parts.length() as u64 > free {
        // The program may wait for EPOLLOUT after a short send, as on the kernel, and only then.
        rings.send().producer_waits();
        free = rings.send().free(tail, rings.capacity)?;
    }
    let count = parts.length().min(free as usize);
    if count == 0 {
        return Ok(match rings.send().is_closed() {
            true => None,
            false if parts.length() == 0 => Some(Ok(0)),
            false => Some(Err(EAGAIN)),
        });
    }
    octets(rings, true).put(tail, parts, count);
    if rings.send().publish(tail, tail + count as u64)? == Published::Closed {
        return Ok(None);
    }
    way.index.store(tail + count as u64, Ordering::Relaxed);
    counters::SENT.add(1);
    if rings.send().wake_consumer() {
        session.wake_peer();
    }
    Ok(Some(Ok(count)))
}

/// ended asks the kernel, if there is a reason to, whether the peer has closed or reset the connection. The
/// stream then goes on there, and the kernel answers as it would without rings.
fn ended(session: &Session, fd: c_int, rings: &Rings) -> bool {
    let asked = session.suspect.load(Ordering::Relaxed) || rings.header.has_left(rings.peer());
    asked && real::poll_one(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// room is the number of octets that a send takes at once, as far as is known.
pub fn room(session: &Session, fd: c_int) -> usize {
    let way = &session.side().send;
    match session.rings().filter(|_| way.phase() == Phase::Ring) {
        Some(rings) => rings.send().free(way.index.load(Ordering::Relaxed), rings.capacity).unwrap_or(0) as usize,
        None if real::poll_one(fd, libc::POLLOUT) != 0 => 4096,
        None => 0,
    }
}

/// queued is the number of octets that a receive would get at once.
pub fn queued(session: &Session, fd: c_int) -> usize {
    let way = &session.side().receive;
    let by_ring = session.rings().filter(|_| way.phase() != Phase::After).map_or(0, |rings| {
        let head = way.index.load(Ordering::Relaxed);
        rings.receive().available(head, rings.capacity).map_or(0, |(n, _)| n)
    });
    by_ring as usize + kernel_queue(fd)
}

/// unread is the number of octets that the peer has not taken from the ring.
pub fn unread(session: &Session) -> usize {
    let way = &session.side().send;
    session.rings().map_or(0, |rings| {
        let tail = way.index.load(Ordering::Relaxed);
        rings.send().free(tail, rings.capacity).map_or(0, |free| (rings.capacity - free) as usize)
    })
}

/// shut_down is shutdown(2). What the ring has is received before the kernel's end of the connection.
pub fn shut_down(session: &'static Session, fd: c_int, how: c_int) -> Outcome {
    let way = &session.side().send;
    let phase = way.phase();
    let result = way.with_lock(|_| {
        if let Some(rings) = session.rings().filter(|_| how != libc::SHUT_RD) {
            rings.send().close();
            way.enter(Phase::After);
        }
        // SAFETY: shutdown of a descriptor.
        real::outcome(unsafe { real::shutdown(fd, how) } as isize)
    });
    if let Some(rings) = session.rings() {
        rings.header.leave(rings.role);
    }
    if way.phase() != phase {
        resync(session);
    }
    result
}

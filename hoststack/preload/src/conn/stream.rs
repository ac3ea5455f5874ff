// SPDX-License-Identifier: Apache-2.0

//! Sending and receiving on a session: by the kernel's connection, by the ring, and where one follows the other.

use crate::conn::ends::{self, keep, kept_for_send};
use crate::conn::session::{Rings, Session};
use crate::conn::side::{Phase, Way, LONG, SHORT};
use crate::conn::sink::Buffers;
use crate::conn::source::Source;
use crate::conn::{earn, identity, offer, order, recall, receive};
use crate::fdtable::descriptors;
use crate::ready::epoll::{Epoll, READ_BITS, WRITE_BITS};
use crate::ready::wait;
use crate::ring::parts::{Octets, Parts};
use crate::sys::{lock, real, uncancelled};
use crate::telemetry::page;
use beeline_ring::{Published, Violation};
use core::sync::atomic::Ordering;
use libc::{c_int, EAGAIN, ECONNRESET, MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL};

pub type Outcome = Result<usize, i32>;

/// The descriptor is not the session's socket any more. No error of the kernel has this number.
pub const OTHER_FILE: i32 = i32::MAX;

/// Who has the lock does not go on: EAGAIN, also for a call that would wait.
pub const STUCK: i32 = i32::MAX - 1;

/// receive is recv(2) on a session.
pub fn receive(session: &'static Session, fd: c_int, parts: Parts, flags: c_int) -> Outcome {
    uncancelled::test();
    offer::before(session, fd);
    if flags & MSG_PEEK != 0 {
        return peek(session, fd, Buffers { parts, flags });
    }
    take(session, fd, parts, flags)
}

/// peek receives octets that stay where they are. It waits for as many as a receive that takes them.
fn peek(session: &'static Session, fd: c_int, sink: Buffers) -> Outcome {
    let (parts, flags) = (sink.parts, sink.flags);
    let least = least(session, parts.length(), flags);
    if least <= 1 || !blocks(session, fd, flags) {
        return take(session, fd, parts, flags);
    }
    let deadline = wait::limit_of_receive(fd);
    let mut few = take(session, fd, parts, flags)?;
    while few > 0 && few < least && wait::further(session, fd, few, deadline) == Ok(true) {
        let more = take(session, fd, parts, flags | MSG_DONTWAIT).unwrap_or(few);
        // Octets that the kernel has behind the ring cannot be seen before the others are taken.
        if more <= few && queued(session, fd) > few {
            break;
        }
        few = more;
    }
    Ok(few)
}

fn take(session: &'static Session, fd: c_int, parts: Parts, flags: c_int) -> Outcome {
    let wanted = parts.length();
    let mut done = 0;
    loop {
        let sink = Buffers { parts: parts.after(done), flags };
        let pauses = if blocks(session, fd, flags) { LONG } else { SHORT };
        let mut result = receive::try_once(session, fd, &sink, pauses);
        let waits = result == Err(EAGAIN) && blocks(session, fd, flags);
        let by_kernel = waits && is_kernels(session, &session.side().receive);
        if by_kernel {
            // SAFETY: the buffers are the program's, for this call.
            result = sink.parts.message(|m| real::outcome(unsafe { real::recvmsg(fd, m, flags) }));
            if matches!(result, Ok(0) | Err(ECONNRESET)) {
                result = ended_by_kernel(session, fd, &sink, result);
            }
        }
        match result {
            Ok(n) => {
                order::answered(session);
                done += n;
                let is_short = done < least(session, wanted, flags) && flags & MSG_PEEK == 0;
                let goes_on = n > 0 && is_short && blocks(session, fd, flags);
                if !goes_on {
                    return Ok(done).inspect(|_| offer::after(session, fd));
                }
            }
            Err(EAGAIN) if waits && !by_kernel => match wait::readable(session, fd) {
                // The kernel waits, and then has copied all that there is room for.
                _ if wanted == 0 => return Ok(0),
                Ok(()) => {}
                Err(error) => {
                    return last_receive(session, fd, &sink, error).map_or_else(|e| some(done, e), |n| Ok(done + n))
                }
            },
            Err(STUCK) => return some(done, EAGAIN),
            Err(OTHER_FILE) => {
                identity::verify(fd);
                // SAFETY: the buffers are the program's, for this call.
                let rest = sink.parts.message(|m| real::outcome(unsafe { real::recvmsg(fd, m, flags) }));
                return rest.map_or_else(|error| some(done, error), |n| Ok(done + n));
            }
            Err(error) if done > 0 => {
                keep(session, error);
                return Ok(done);
            }
            Err(error) => return Err(error),
        }
    }
}

/// ended_by_kernel is what a receive returns after the kernel's own call has met the end.
fn ended_by_kernel(session: &'static Session, fd: c_int, sink: &Buffers, result: Outcome) -> Outcome {
    match result {
        Ok(_) => receive::attempt(session, fd, sink),
        Err(_) => result.inspect_err(|_| ends::is_reset(session)),
    }
}

/// least is how many octets a receive waits for: all, or SO_RCVLOWAT.
fn least(session: &Session, wanted: usize, flags: c_int) -> usize {
    match flags & MSG_WAITALL {
        0 => wanted.min(session.side().low_mark.load(Ordering::Relaxed) as usize),
        _ => wanted,
    }
}

/// last_receive is for a wait that ended with an error. Octets that are fewer than SO_RCVLOWAT did not end it.
fn last_receive(session: &'static Session, fd: c_int, sink: &Buffers, error: i32) -> Outcome {
    match descriptors::option(fd, libc::SO_RCVLOWAT) {
        Some(2..) => receive::attempt(session, fd, sink).map_err(|_| error),
        _ => Err(error),
    }
}

pub fn some(done: usize, error: i32) -> Outcome {
    if done > 0 {
        Ok(done)
    } else {
        Err(error)
    }
}

/// send is send(2) on a session. A blocking one returns when all octets are sent.
pub fn send(session: &'static Session, fd: c_int, parts: Parts, flags: c_int) -> Outcome {
    uncancelled::test();
    offer::before(session, fd);
    let wanted = parts.length();
    let mut done = 0;
    loop {
        let portion = earn::portion(session, fd, wanted - done);
        let source = Buffers { parts: parts.after(done).at_most(portion), flags };
        let mut result = attempt_send(session, fd, &source);
        let waits = result == Err(EAGAIN) && blocks(session, fd, flags);
        let by_kernel = waits && is_kernels(session, &session.side().send);
        if by_kernel {
            // SAFETY: the buffers are the program's, for this call.
            result = source.parts.message(|m| real::outcome(unsafe { real::sendmsg(fd, m, flags) }));
            order::sent(session);
        }
        match result {
            Ok(n) => {
                done += n;
                if done >= wanted || n < portion && !blocks(session, fd, flags) {
                    return Ok(done).inspect(|_| offer::after(session, fd));
                }
                offer::within(session, fd, wanted - done);
            }
            Err(EAGAIN) if waits && !by_kernel => {
                if let Err(error) = wait::writable(session, fd) {
                    return if done > 0 { Ok(done) } else { Err(error) };
                }
            }
            Err(error) if done > 0 => {
                keep(session, error);
                return Ok(done);
            }
            Err(error) => return Err(error),
        }
    }
}

pub fn blocks(session: &Session, fd: c_int, flags: c_int) -> bool {
    flags & MSG_DONTWAIT == 0 && !descriptors::is_nonblocking(session, fd)
}

/// is_kernels reports whether a direction is the kernel's for good, so that the kernel's own call may wait.
pub fn is_kernels(session: &Session, way: &Way) -> bool {
    let side = session.side();
    let never_attaches = || {
        let stays = side.stays.load(Ordering::SeqCst) != 0;
        stays && !session.upgrading.load(Ordering::SeqCst) && !session.is_attached()
    };
    way.phase() == Phase::After || never_attaches()
}

/// needs_events reports whether something else than the kernel's connection may have news.
pub fn needs_events(session: &Session) -> bool {
    let side = session.side();
    !is_kernels(session, &side.receive) || !is_kernels(session, &side.send)
}

/// leave_to_kernel is for a connection on which a thread has to wait and cannot: events need descriptors.
pub fn leave_to_kernel(session: &'static Session) {
    let side = session.side();
    session.fall_back();
    let Some(rings) = session.rings() else {
        // Another thread may be about to attach the session: it is not for long.
        return lock::pause();
    };
    let is_over = |way: &Way| {
        let left = rings.receive().available(way.index.load(Ordering::Relaxed), rings.capacity);
        matches!(left, Ok((0, true)))
    };
    side.receive.with_lock(SHORT, |_| {
        if is_over(&side.receive) {
            side.receive.enter(Phase::After);
        }
    });
    side.send.leave();
    page::note(side);
    resync_all(session);
}

/// kernel_queue is the number of octets that the kernel's connection has for this end.
pub fn kernel_queue(fd: c_int) -> usize {
    let mut count: c_int = 0;
    // SAFETY: FIONREAD stores a number.
    unsafe { real::ioctl(fd, libc::FIONREAD, core::ptr::from_mut(&mut count) as usize) };
    count as usize
}

pub fn octets(rings: &Rings, sending: bool) -> Octets {
    let producer = if sending { rings.role } else { rings.peer() };
    Octets { at: rings.octets(producer), capacity: rings.capacity }
}

/// break_off resets a connection whose peer does what it must not.
pub fn break_off(session: &'static Session, fd: c_int, _: Violation) -> i32 {
    page::counters().violations.add(1);
    reset_at_close(fd);
    cut_off(session, fd)
}

/// cut_off ends a connection on both sides, as a RST does.
pub fn cut_off(session: &'static Session, fd: c_int) -> i32 {
    session.close_rings();
    session.side().receive.enter(Phase::After);
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

pub fn attempt_send(session: &'static Session, fd: c_int, source: &impl Source) -> Outcome {
    let way = &session.side().send;
    let before = way.phase();
    if is_kernels(session, way) {
        return kernel_send(session, fd, source).inspect_err(|&error| {
            if error == ECONNRESET {
                ends::is_reset(session);
            }
        });
    }
    let result = way.with_lock(SHORT, |stolen| {
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
        ends::is_reset(session);
    }
    if way.phase() != before {
        page::note(session.side());
        each_watch(session, |epoll, slot| epoll.moved(slot, session, WRITE_BITS, false));
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

/// resync_all is for a session that has left its rings in both directions at once.
pub fn resync_all(session: &'static Session) {
    resync(session, READ_BITS | WRITE_BITS);
}

/// changed tells the epoll instances who knows now whether the session is writable.
fn changed(session: &'static Session) {
    page::note(session.side());
    resync(session, WRITE_BITS);
}

pub fn resync(session: &'static Session, bits: u32) {
    each_watch(session, |epoll, slot| epoll.moved(slot, session, bits, true));
}

/// look_again has epoll instances look whether a session is readable: as on the kernel that is another edge.
pub fn look_again(session: &'static Session) {
    if session.is_attached() {
        each_watch(session, |epoll, slot| epoll.attach(slot, session));
    }
}

fn each_watch(session: &Session, f: impl Fn(&Epoll, usize)) {
    let watches = session.watches.lock().clone();
    watches.into_iter().for_each(|(epoll, slot)| f(epoll, slot));
}

fn send_locked(session: &'static Session, fd: c_int, source: &impl Source) -> Outcome {
    let way = &session.side().send;
    loop {
        let rings = session.rings();
        match (way.phase(), rings) {
            (Phase::Before, Some(rings)) if !source.is_urgent() && may_begin(session, &rings) => {
                rings.send().begin(way.kernel.load(Ordering::Relaxed));
                way.enter(Phase::Ring);
            }
            (Phase::Ring, Some(rings)) if !source.is_urgent() => match ring_send(session, fd, &rings, source) {
                Ok(Some(result)) => return result,
                Ok(None) => {
                    recall::give(session, fd, &rings);
                    way.enter(Phase::After);
                }
                Err(violation) => return Err(break_off(session, fd, violation)),
            },
            _ => return kernel_send(session, fd, source),
        }
    }
}

/// may_begin reports whether the ring can carry what follows.
fn may_begin(session: &Session, rings: &Rings) -> bool {
    rings.header.is_active() && !rings.send().is_closed() && session.side().stays.load(Ordering::Relaxed) == 0
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
        sent_by_kernel(session, n as u64);
    }
    order::sent(session);
    Ok(n)
}

/// sent_by_kernel counts octets that the kernel's connection has taken.
pub fn sent_by_kernel(session: &Session, count: u64) {
    session.side().send.kernel.fetch_add(count, Ordering::Relaxed);
}

/// ring_send puts octets into the ring; None if it is closed, and the kernel's connection goes on.
fn ring_send(
    session: &'static Session,
    fd: c_int,
    rings: &Rings,
    source: &impl Source,
) -> Result<Option<Outcome>, Violation> {
    let way = &session.side().send;
    let tail = way.index.load(Ordering::Relaxed);
    let mut free = rings.send().free(tail, rings.capacity)?;
    let used = rings.capacity - free;
    let asks = ends::is_silent(way, tail.wrapping_sub(used), used) || may_have_ended(session, rings);
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
        return Ok(source.rescue(fd, &octets, tail, count).inspect(|_| way.enter(Phase::After)));
    }
    way.index.store(tail + count as u64, Ordering::Relaxed);
    if used == 0 {
        ends::begin_waiting(way);
    }
    page::counters().sent.add(count as u64);
    if rings.send().wake_consumer() {
        session.wake_peer();
    }
    Ok(Some(Ok(count)))
}

/// may_have_ended reports whether there is a reason to ask the kernel for the peer.
fn may_have_ended(session: &Session, rings: &Rings) -> bool {
    session.suspect.load(Ordering::Relaxed) || rings.header.has_left(rings.peer())
}

/// ended asks the kernel whether the peer has closed or reset the connection. The stream then goes on there, and the
/// kernel answers as it would without rings.
fn ended(session: &Session, fd: c_int) -> bool {
    let ended = ends::means_end(session, fd, real::poll_or_suspect(fd, libc::POLLRDHUP));
    if ended {
        ends::notice(session, fd);
    }
    ended
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
    let end = || {
        if how != libc::SHUT_RD {
            if let Some(rings) = session.rings() {
                recall::give(session, fd, &rings);
                rings.send().close();
                // The peer takes a FIN without it for that of an end that was killed.
                rings.header.leave(rings.role);
            }
            // Also without rings, which may come yet.
            way.enter(Phase::After);
        }
        if how != libc::SHUT_WR {
            session.side().shut.store(1, Ordering::Relaxed);
        }
        // SAFETY: shutdown of a descriptor.
        real::outcome(unsafe { real::shutdown(fd, how) } as isize)
    };
    let result = way.with_lock(SHORT, |_| end()).unwrap_or_else(end);
    if way.phase() != phase {
        changed(session);
    }
    result
}

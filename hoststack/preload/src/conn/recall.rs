// SPDX-License-Identifier: Apache-2.0

//! Octets of a ring that come by the kernel's connection after all: before its socket goes to another program, which
//! does not see the ring. Only the peer can send them, and only while its program is in a call of this library.

use crate::conn::peer::keep;
use crate::conn::{stream, watch, Phase, Session, Sink, READ_BITS, SHORT, WRITE_BITS};
use crate::ring::Rings;
use crate::sys::errno::{self, EAGAIN};
use crate::sys::{clock, real, uncancelled, Deadline, Outcome};
use beeline_ring::{Answer, Recall, Violation};
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::{c_int, MSG_DONTWAIT, MSG_NOSIGNAL, POLLERR, POLLHUP, POLLRDHUP};

/// How long a peer may take to send.
const LIMIT: Duration = Duration::from_millis(90);

/// The wait between two looks at its answer grows up to this.
const PAUSE: Duration = Duration::from_millis(4);

/// Makes a connection continue on the kernel, with everything that its ring has. False if the peer does not send
/// that: it stays in the ring. `answer_all` answers for all connections of this process: the peer may be this thread.
pub fn leave(session: &'static Session, fd: c_int, rings: &Rings, answer_all: fn()) -> bool {
    let (end, direction) = (session.end(), &session.end().receive);
    let has_left = direction.with_lock(SHORT, |_| {
        if let Some(recall) = rings.peer_recall().filter(|_| end.recalled.load(Ordering::Relaxed) == 0) {
            recall.ask();
        }
        session.leave_rings();
        let has_left =
            direction.phase() == Phase::After || is_empty(session, rings) || is_given(session, fd, rings, answer_all);
        if has_left {
            // Nobody takes what is in the ring, and the peer must not take it for unread.
            let all = rings.receive().mark();
            direction.index.store(all, Ordering::SeqCst);
            rings.receive().release(all);
            direction.enter(Phase::After);
            end.left.store(1, Ordering::SeqCst);
        }
        has_left
    });
    let has_left = has_left.unwrap_or(false);
    end.note();
    watch::resync(session, READ_BITS);
    has_left
}

fn is_empty(session: &Session, rings: &Rings) -> bool {
    let index = session.end().receive.index.load(Ordering::SeqCst);
    matches!(rings.receive().available(index, rings.capacity), Ok((0, _)))
}

/// Waits for the peer's answer.
fn is_given(session: &'static Session, fd: c_int, rings: &Rings, answer_all: fn()) -> bool {
    let Some(recall) = rings.peer_recall() else { return false };
    session.wake_peer();
    let deadline = Deadline::after(Some(LIMIT));
    let mut pause = Duration::from_micros(20);
    loop {
        let peer_ended = poll(fd, pause);
        answer_all();
        match recall.answer() {
            Answer::Done(index) => return conclude(session, rings, index),
            _ if !peer_ended && !deadline.is_over() => pause = (pause * 2).min(PAUSE),
            _ if recall.withdraw() => return false,
            _ => {
                session.end().recalled.store(1, Ordering::Relaxed);
                return matches!(recall.answer(), Answer::Done(index) if conclude(session, rings, index));
            }
        }
    }
}

/// Returns whether everything comes by the kernel's connection.
fn conclude(session: &Session, rings: &Rings, index: u64) -> bool {
    let (end, all) = (session.end(), rings.receive().mark());
    let own = end.receive.index.load(Ordering::Relaxed);
    end.recalled.store(u32::from(index > own && index < all), Ordering::Relaxed);
    index >= all
}

/// Waits, and returns whether the peer can send no more.
fn poll(fd: c_int, time: Duration) -> bool {
    let mut one = libc::pollfd { fd, events: POLLRDHUP, revents: 0 };
    let time = clock::to_timespec(time);
    // SAFETY: one descriptor, and no signal mask.
    unsafe { real::ppoll(&mut one, 1, &time, core::ptr::null()) };
    one.revents & (POLLRDHUP | POLLHUP | POLLERR) != 0
}

/// Sends what the peer has recalled, if it has.
pub fn answer(session: &'static Session, fd: c_int) {
    let Some(rings) = session.rings().filter(|rings| rings.own_recall().is_some_and(Recall::is_asked)) else { return };
    errno::preserve(|| {
        session.end().send.with_lock(SHORT, |_| give(session, fd, &rings));
        session.end().note();
        watch::resync(session, WRITE_BITS);
    });
}

/// Like `answer`, for a thread that holds the lock of what this end sends. Nothing follows by the ring.
pub fn give(session: &Session, fd: c_int, rings: &Rings) {
    let direction = &session.end().send;
    let Some(recall) = rings.own_recall().filter(|recall| recall.take()) else { return };
    let in_order = direction.phase() == Phase::Ring && session.end().left.load(Ordering::SeqCst) == 0;
    rings.send().close();
    direction.enter(Phase::After);
    let tail = direction.index.load(Ordering::Relaxed);
    // A number of octets that cannot be: nothing is sent.
    let Ok(free) = rings.send().free(tail, rings.capacity) else { return recall.done(0) };
    let mut index = tail - (rings.capacity - free);
    while in_order && index < tail {
        match send(fd, rings, index, tail) {
            Ok(n) => index += n as u64,
            Err(_) => break,
        }
    }
    recall.done(index);
}

fn send(fd: c_int, rings: &Rings, from: u64, to: u64) -> Outcome {
    let regions = stream::octets(rings, true).regions(from, (to - from) as usize);
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = regions.as_ptr().cast_mut();
    message.msg_iovlen = regions.len() as _;
    // SAFETY: the regions are those of a ring.
    errno::outcome(unsafe { uncancelled::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) })
}

/// Takes octets of the ring from the kernel's connection that the peer has sent there, after a recall that did not
/// end in time; None if the next are in the ring.
pub fn receive(
    session: &'static Session,
    rings: &Rings,
    fd: c_int,
    sink: &impl Sink,
) -> Result<Option<Outcome>, Violation> {
    let direction = &session.end().receive;
    let recalled = session.recalled(rings);
    let index = direction.index.load(Ordering::Relaxed);
    let (available, _) = rings.receive().available(index, rings.capacity)?;
    let by_kernel = recalled.unwrap_or(available).min(available);
    if by_kernel == 0 {
        session.end().recalled.store(0, Ordering::Relaxed);
        return Ok(None);
    }
    match sink.at_most(by_kernel as usize).by_kernel(fd) {
        Ok(0) if sink.length() > 0 => {}
        Err(error) if error != EAGAIN => keep(session, error),
        Ok(n) if !sink.keeps() => {
            direction.index.store(index + n as u64, Ordering::Relaxed);
            rings.receive().release(index + n as u64);
            // Sleepers were not woken for what is in the ring.
            session.wake();
            return Ok(Some(Ok(n)));
        }
        other => return Ok(Some(other)),
    }
    // The peer was killed while it sent: the rest is in the ring.
    session.end().recalled.store(0, Ordering::Relaxed);
    Ok(None)
}

// SPDX-License-Identifier: Apache-2.0

//! When a connection asks for rings. They cost more than a short connection can save, so it earns them by octets, or by
//! operations and age.
//!
//! Without rings a call goes to the kernel as the program made it, and is only counted. Rings must not come while a
//! thread is in such a call, since it would not notice them: `inside` counts these threads, and a session is attached
//! only when there is none.

use crate::conn::offer::{self, Alone};
use crate::conn::{config, order, Direction, Held, Session};
use crate::sys::{clock, socket};
use beeline_ring::Role;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use libc::{c_int, ssize_t, MSG_OOB, MSG_PEEK};

/// Rings cost more than a connection with fewer octets can save.
const SMALL: u64 = (1 << 20) + (4 << 10);

/// Octets after which each operation looks how many are to follow: in the socket's queue, or of a send that is divided.
const LOOK: u64 = 512 << 10;

/// Octets of each ring: few for messages, so that those of many connections are in the cache of a CPU, and more for a
/// connection that has moved many: a reply of 1 MiB by a small ring has both ends wait for each other at each half of
/// it.
const RING: u32 = 64 << 10;
const LARGE_RING: u32 = 256 << 10;

/// What is sent in one piece while an offer is awaited. Smaller pieces leave CUBIC and BBR with a smaller window for
/// the whole connection: with 64 KiB replies of 1 MiB took a sixth longer.
const STEP: u64 = 512 << 10;

/// Milliseconds and octets after which sends are not divided any more although the session asks: its peer has not
/// answered. A peer that receives has earned rings, too, before so many octets. With twice as many, CUBIC is slower in
/// a third of runs.
const DIVIDES: u64 = 100;
const DIVIDED: u64 = 2 << 20;

/// Operations, and age in milliseconds, after which a connection with few octets asks. The connector is first, so that
/// the offer finds its socket.
const CONNECTOR: (u32, u64) = (8, 8);
const ACCEPTOR: (u32, u64) = (16, 16);

/// After as many operations a poll is not left to the kernel: a thread may poll all the time.
const POLLS: u32 = 16;

pub struct Merits {
    /// Calls of the kernel may begin: the session is not attached, nor about to be. SeqCst with `inside`: a call that
    /// begins sees that it is shut, or shut() sees the call. The release of the end of a call pairs with the load in
    /// shut().
    open: AtomicBool,
    /// It has earned rings, and asks for them.
    asks: AtomicBool,
    /// It has given up.
    settled: AtomicBool,
    /// Of an acceptor: whether it asks the client was decided; it does not, unless the client answers another
    /// connection; the client has been counted as one that does not answer.
    pub judged: AtomicBool,
    pub left_out: AtomicBool,
    pub unresponsive: AtomicBool,
    inside: AtomicU32,
    pub operations: AtomicU32,
    /// Octets of sendfile(2) and splice(2), which rings would copy.
    uncopied: AtomicU64,
    /// When the connection began, when it began to ask, and when it tried last, in milliseconds.
    begun: AtomicU64,
    asked: AtomicU64,
    tried: AtomicU64,
}

impl Merits {
    pub const fn new() -> Self {
        Self {
            open: AtomicBool::new(true),
            asks: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            judged: AtomicBool::new(false),
            left_out: AtomicBool::new(false),
            unresponsive: AtomicBool::new(false),
            inside: AtomicU32::new(0),
            operations: AtomicU32::new(0),
            uncopied: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            tried: AtomicU64::new(0),
        }
    }

    /// Begins with a new connection.
    pub fn begin(&self) {
        self.open.store(true, Ordering::Relaxed);
        self.asks.store(false, Ordering::Relaxed);
        for flag in [&self.settled, &self.judged, &self.left_out, &self.unresponsive] {
            flag.store(false, Ordering::Relaxed);
        }
        self.inside.store(0, Ordering::Relaxed);
        self.operations.store(0, Ordering::Relaxed);
        self.uncopied.store(0, Ordering::Relaxed);
        self.connected();
    }

    /// Notes that the connection of an older session has just begun.
    pub fn connected(&self) {
        self.begun.store(clock::ticks(), Ordering::Relaxed);
    }

    /// Resets the count in a child of fork: the thread that forked is in no call.
    pub fn after_fork(&self) {
        self.inside.store(0, Ordering::Relaxed);
    }

    pub fn asks(&self) -> bool {
        self.asks.load(Ordering::Relaxed)
    }

    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// Leaves a connection without rings to the kernel for good.
    pub fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    /// Makes no call of the kernel begin; false if some have begun and not ended.
    pub fn shut(&self) -> bool {
        self.open.store(false, Ordering::SeqCst);
        self.inside.load(Ordering::SeqCst) == 0
    }

    /// Takes shut back.
    pub fn reopen(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Notes that the session has earned rings.
    fn ask(&self) {
        let now = clock::ticks();
        self.asked.store(now, Ordering::Relaxed);
        self.tried.store(now, Ordering::Relaxed);
        self.operations.store(1, Ordering::Relaxed);
        self.asks.store(true, Ordering::Relaxed);
    }

    /// Returns how long the session has asked, in milliseconds.
    pub fn waited(&self) -> u64 {
        clock::ticks().saturating_sub(self.asked.load(Ordering::Relaxed))
    }

    /// Returns whether so many milliseconds have passed since it has done so last.
    pub fn is_due(&self, gap: u64) -> bool {
        let now = clock::ticks();
        let is_due = now.saturating_sub(self.tried.load(Ordering::Relaxed)) >= gap;
        if is_due {
            self.tried.store(now, Ordering::Relaxed);
        }
        is_due
    }

    /// Returns the age in milliseconds.
    pub fn age(&self) -> u64 {
        clock::ticks().saturating_sub(self.begun.load(Ordering::Relaxed))
    }
}

/// Returns the octets that the connection has moved and that rings would have carried as well.
fn octets(session: &Session) -> u64 {
    let end = session.end();
    let all = end.receive.kernel.load(Ordering::Relaxed) + end.send.kernel.load(Ordering::Relaxed);
    all.saturating_sub(session.merits.uncopied.load(Ordering::Relaxed))
}

/// Returns the number of octets of each ring that a session gets.
pub fn ring(session: &Session) -> u32 {
    let earned = if octets(session) >= LOOK { LARGE_RING } else { RING };
    config::get().ring.unwrap_or(earned)
}

/// Returns whether a session asks for rings from now on. So many octets are known to follow.
pub fn earns(session: &Session, fd: c_int, operations: u32, ahead: usize) -> bool {
    if !has_earned(session, fd, operations, ahead) || !is_stream(session, fd) {
        return false;
    }
    session.merits.ask();
    true
}

fn has_earned(session: &Session, fd: c_int, operations: u32, ahead: usize) -> bool {
    if let Some(after) = config::get().after {
        return operations >= after;
    }
    let moved = octets(session);
    let (least, age) = if session.role() == Role::Connector { CONNECTOR } else { ACCEPTOR };
    operations >= least && session.merits.age() >= age
        || moved >= LOOK && moved + ahead.max(socket::queued(fd)) as u64 > SMALL
}

/// Returns whether a session is one of TCP. It settles others.
fn is_stream(session: &Session, fd: c_int) -> bool {
    let known = session.merits.asks() || socket::option(fd, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
    if !known {
        session.merits.settle();
    }
    known
}

/// Returns how many of the octets that are left are sent in one piece, so that a large send can go on by rings.
pub fn portion(session: &Session, fd: c_int, left: usize) -> usize {
    if session.is_attached() || session.merits.is_settled() || config::get().after.is_some() {
        return left;
    }
    if session.merits.asks() && session.merits.waited() > DIVIDES {
        return left;
    }
    let moved = octets(session);
    let is_whole = moved + left as u64 <= SMALL || moved >= DIVIDED;
    if is_whole || session.anticipated.load(Ordering::Relaxed) || !is_stream(session, fd) {
        return left;
    }
    let most = if moved < LOOK { LOOK - moved } else { STEP };
    left.min(most as usize)
}

/// A call of the kernel on a session without rings.
pub struct Direct(&'static Session);

impl Drop for Direct {
    fn drop(&mut self) {
        self.0.merits.inside.fetch_sub(1, Ordering::Release);
    }
}

/// Begins a call that the kernel answers alone; None if the session has rings, or may get some meanwhile.
pub fn direct(session: &'static Session, fd: c_int) -> Option<Direct> {
    if !session.merits.open.load(Ordering::Relaxed) {
        return None;
    }
    if session.merits.asks() {
        offer::before(session, fd);
    }
    enter(session)
}

fn enter(session: &'static Session) -> Option<Direct> {
    let merits = &session.merits;
    merits.inside.fetch_add(1, Ordering::SeqCst);
    let direct = Direct(session);
    merits.open.load(Ordering::SeqCst).then_some(direct)
}

/// Begins a send of so many octets, unless it is to be divided.
pub fn direct_send(session: &'static Session, fd: c_int, octets: usize) -> Option<Direct> {
    let direct = direct(session, fd)?;
    (portion(session, fd, octets) == octets).then_some(direct)
}

/// Begins a poll.
pub fn direct_wait(session: &'static Session) -> Option<Direct> {
    let merits = &session.merits;
    let is_short = merits.is_settled() || merits.operations.load(Ordering::Relaxed) < POLLS;
    is_short.then(|| enter(session)).flatten()
}

/// Counts what a call of the kernel has moved that rings would copy.
pub fn uncopied(alone: Alone, fd: c_int, n: ssize_t, wanted: usize, direction: &Direction) {
    let session = alone.0;
    if n < wanted as ssize_t {
        session.found_full();
    }
    let Ok(octets) = u64::try_from(n) else { return };
    direction.kernel.fetch_add(octets, Ordering::Relaxed);
    session.merits.uncopied.fetch_add(octets, Ordering::Relaxed);
    drop(alone);
    offer::after(session, fd);
}

/// The ends of a splice(2) that get no rings meanwhile.
pub struct Ends {
    from: Option<(Alone, c_int)>,
    to: Option<(Alone, c_int)>,
}

impl Ends {
    /// Returns None if one of the ends has rings.
    pub fn unattached(from: (c_int, Option<&Held>), to: (c_int, Option<&Held>)) -> Option<Self> {
        let end = |(fd, session): (c_int, Option<&Held>)| match session {
            Some(session) => offer::unattached(session.forever()).map(|alone| Some((alone, fd))),
            None => Some(None),
        };
        Some(Self { from: end(from)?, to: end(to)? })
    }

    /// Counts what the kernel has moved of so many octets, and returns that.
    pub fn moved(self, n: ssize_t, wanted: usize) -> ssize_t {
        if let Some((alone, fd)) = self.from {
            let direction = &alone.0.end().receive;
            uncopied(alone, fd, n, wanted, direction);
        }
        if let Some((alone, fd)) = self.to {
            let direction = &alone.0.end().send;
            uncopied(alone, fd, n, wanted, direction);
        }
        n
    }
}

impl Direct {
    /// Counts what a call has received, and returns that.
    pub fn received(self, fd: c_int, n: ssize_t, flags: c_int) -> ssize_t {
        let direction = &self.0.end().receive;
        if n > 0 {
            order::answered(self.0);
        }
        self.done(fd, n, direction, flags & (MSG_PEEK | MSG_OOB) == 0)
    }

    pub fn sent(self, fd: c_int, n: ssize_t, wanted: usize, flags: c_int) -> ssize_t {
        if n < wanted as ssize_t {
            self.0.found_full();
        }
        let direction = &self.0.end().send;
        if n > 0 {
            order::sent(self.0);
        }
        self.done(fd, n, direction, flags & MSG_OOB == 0)
    }

    fn done(self, fd: c_int, n: ssize_t, direction: &Direction, counts: bool) -> ssize_t {
        let session = self.0;
        let Ok(octets) = u64::try_from(n) else { return n };
        if counts {
            direction.kernel.fetch_add(octets, Ordering::Relaxed);
        }
        drop(self);
        offer::after(session, fd);
        n
    }
}

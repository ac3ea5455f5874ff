// SPDX-License-Identifier: Apache-2.0

//! poll(2) and select(2) over sessions and other descriptors.

use crate::conn::{earn, peer, recall, stream, Held, Phase, Session};
use crate::ready::Epoll;
use crate::sys::errno::{self, EBADF, EINVAL};
use crate::sys::{clock, real, waiter, Deadline, Outcome, NO_FD};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::{c_int, fd_set, pollfd, sigset_t, timespec};
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRBAND, POLLWRNORM};

const READ_BITS: i16 = POLLIN | POLLRDNORM;
const WRITE_BITS: i16 = POLLOUT | POLLWRNORM | POLLWRBAND;

/// The table of descriptors.
pub trait Lookup {
    fn session(&self, fd: c_int) -> Option<Held>;
    fn epoll(&self, fd: c_int) -> Option<&'static Epoll>;
}

/// Does ppoll(2).
pub fn poll(table: &impl Lookup, fds: &mut [pollfd], limit: Option<Duration>, mask: *const sigset_t) -> Outcome {
    fds.iter().filter_map(|one| table.epoll(one.fd)).for_each(|epoll| epoll.watch());
    // Nothing is allocated without sessions: an allocator may call poll(2) while it has its own lock.
    if fds.iter().all(|one| table.session(one.fd).is_none()) {
        return kernel_poll(fds, limit, mask);
    }
    let sessions: Vec<_> = fds.iter().map(|one| table.session(one.fd)).collect();
    let young: Option<Vec<_>> = sessions.iter().flatten().map(|session| earn::direct_wait(session.forever())).collect();
    if let Some(_young) = young {
        return kernel_poll(fds, limit, mask);
    }
    let deadline = Deadline::after(limit);
    loop {
        let n = once(fds, &sessions, deadline, mask)?;
        if n > 0 || deadline.is_over() {
            return Ok(n);
        }
    }
}

/// Asks rings and kernel. It returns 0 if it has to be called again, or the time is over.
fn once(fds: &mut [pollfd], sessions: &[Option<Held>], deadline: Deadline, mask: *const sigset_t) -> Outcome {
    let mut all: Vec<pollfd> =
        fds.iter().zip(sessions).map(|(one, session)| for_kernel(one, session.as_deref())).collect();
    let mut ready = any_ready(fds, sessions);
    // Those that the kernel alone knows need no event.
    let mine = || sessions.iter().flatten().filter(|session| stream::needs_events(session));
    if !ready && mine().next().is_some() {
        let waiter = waiter::arm(mine().filter_map(|session| session.event()));
        let mut without = mine().filter(|session| waiter.is_none() || session.event().is_none()).peekable();
        if without.peek().is_some() {
            without.for_each(|session| stream::leave_to_kernel(session.forever()));
            return Ok(0);
        }
        publish_waits(fds, sessions);
        for (one, session) in fds.iter().zip(sessions) {
            session.iter().for_each(|session| recall::answer(session.forever(), one.fd));
        }
        ready = any_ready(fds, sessions);
        all.push(pollfd { fd: waiter.unwrap_or(NO_FD), events: POLLIN, revents: 0 });
    }
    let left = match ready {
        true => Some(Duration::ZERO),
        false => deadline.left(),
    };
    match kernel_poll(&mut all, left, mask) {
        // RLIMIT_NOFILE may not allow one more than the program has.
        Err(EINVAL) if all.len() > fds.len() => {
            leave_to_kernel(sessions);
            Ok(0)
        }
        Err(error) => Err(error),
        Ok(_) => Ok(merge(fds, sessions, &all)),
    }
}

fn leave_to_kernel(sessions: &[Option<Held>]) {
    sessions.iter().flatten().for_each(|session| stream::leave_to_kernel(session.forever()));
}

/// Asks for the peer's end instead of writability while it is the ring that knows, and once also for nothing.
fn for_kernel(one: &pollfd, session: Option<&Session>) -> pollfd {
    let in_ring = |s: &Session| s.end().send.phase() == Phase::Ring;
    let instead = session.filter(|s| in_ring(s)).is_some_and(|s| {
        one.events & WRITE_BITS != 0 || one.events & READ_BITS == 0 && !s.suspect.load(Ordering::Relaxed)
    });
    let events = if instead { one.events & !WRITE_BITS | POLLRDHUP } else { one.events };
    pollfd { events, revents: 0, ..*one }
}

fn any_ready(fds: &[pollfd], sessions: &[Option<Held>]) -> bool {
    fds.iter().zip(sessions).any(|(one, session)| ring_ready(one, session.as_deref()) != 0)
}

fn publish_waits(fds: &[pollfd], sessions: &[Option<Held>]) {
    for (one, session) in fds.iter().zip(sessions) {
        let Some(rings) = session.as_deref().and_then(Session::rings) else { continue };
        if one.events & READ_BITS != 0 {
            rings.receive().consumer_waits();
        }
        let in_ring = |session: &&Session| session.end().send.phase() == Phase::Ring;
        if one.events & WRITE_BITS != 0 {
            session.as_deref().filter(in_ring).inspect(|session| session.await_room(&rings));
        }
    }
}

fn ring_ready(&pollfd { fd, events, .. }: &pollfd, session: Option<&Session>) -> i16 {
    let Some(session) = session else { return 0 };
    let Some(rings) = session.rings() else { return 0 };
    let mut ready = 0;
    if session.reports_readable(fd, &rings) {
        ready |= READ_BITS;
    }
    if session.is_writable(&rings) {
        ready |= POLLOUT | POLLWRNORM;
    }
    ready & events
}

fn merge(fds: &mut [pollfd], sessions: &[Option<Held>], polled: &[pollfd]) -> usize {
    let mut n = 0;
    for ((one, session), polled) in fds.iter_mut().zip(sessions).zip(polled) {
        let by_kernel = session.as_deref().map_or(polled.revents, |session| by_kernel(session, polled));
        let asked = one.events | POLLERR | POLLHUP | libc::POLLNVAL;
        one.revents = (by_kernel | ring_ready(one, session.as_deref())) & asked;
        n += usize::from(one.revents != 0);
        if one.events & !one.revents & POLLOUT != 0 {
            session.as_deref().inspect(|session| session.found_full());
        }
    }
    n
}

/// Returns what the kernel knows of a session, after a look at why the peer has ended, if it has.
fn by_kernel(session: &Session, polled: &pollfd) -> i16 {
    let mut known = polled.revents;
    peer::suspect(session, polled.fd, known);
    if known & (POLLRDHUP | READ_BITS) != 0 && peer::notice(session, polled.fd) {
        known |= real::poll_one(polled.fd, READ_BITS | WRITE_BITS | POLLRDHUP);
    }
    match known != 0 && peer::has_error(session) {
        true => known | POLLERR,
        false => known,
    }
}

fn kernel_poll(fds: &mut [pollfd], limit: Option<Duration>, mask: *const sigset_t) -> Outcome {
    let limit = limit.map(clock::to_timespec);
    let limit = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref::<timespec>);
    // SAFETY: the list is the caller's; the mask is the program's.
    errno::outcome(unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit, mask) } as isize)
}

/// The three of select(2); each may be missing.
pub struct Sets {
    pub read: *mut fd_set,
    pub write: *mut fd_set,
    pub except: *mut fd_set,
}

impl Sets {
    fn each(&self) -> [(*mut fd_set, i16); 3] {
        [(self.read, POLLIN), (self.write, POLLOUT), (self.except, libc::POLLPRI)]
    }

    /// Returns whether a set is there and has the descriptor.
    fn has(set: *mut fd_set, fd: c_int) -> bool {
        // SAFETY: the program's set, and a number below FD_SETSIZE.
        !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
    }

    /// Returns whether the program asks for a session, or for an epoll instance that has some.
    pub fn have_sessions(&self, table: &impl Lookup, count: c_int) -> bool {
        let known = |fd: c_int| table.session(fd).is_some() || table.epoll(fd).is_some();
        (0..count.min(libc::FD_SETSIZE as c_int))
            .any(|fd| known(fd) && self.each().iter().any(|&(set, _)| Self::has(set, fd)))
    }

    /// Does pselect(2) by poll.
    pub fn select(&self, table: &impl Lookup, count: c_int, limit: Option<Duration>, mask: *const sigset_t) -> Outcome {
        let mut fds: Vec<pollfd> = (0..count.min(libc::FD_SETSIZE as c_int)).filter_map(|fd| self.wanted(fd)).collect();
        poll(table, &mut fds, limit, mask)?;
        if fds.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
            return Err(EBADF);
        }
        Ok(fds.iter().map(|one| self.answer(one)).sum())
    }

    fn wanted(&self, fd: c_int) -> Option<pollfd> {
        let of_set = |&(set, bit): &(*mut fd_set, i16)| if Self::has(set, fd) { bit } else { 0 };
        let events = self.each().iter().map(of_set).fold(0, |all, bit| all | bit);
        (events != 0).then_some(pollfd { fd, events, revents: 0 })
    }

    /// Leaves a descriptor in the sets that it is ready for, and counts them. The groups are the kernel's
    /// (POLLIN_SET and the like of fs/select.c).
    fn answer(&self, one: &pollfd) -> usize {
        let groups = [READ_BITS | POLLHUP | POLLERR, WRITE_BITS | POLLERR, libc::POLLPRI];
        let mut n = 0;
        for ((set, bit), group) in self.each().into_iter().zip(groups) {
            if one.events & bit == 0 {
                continue;
            }
            if one.revents & group != 0 {
                n += 1;
            } else {
                // SAFETY: the program's set, which has this descriptor.
                unsafe { libc::FD_CLR(one.fd, set) };
            }
        }
        n
    }
}

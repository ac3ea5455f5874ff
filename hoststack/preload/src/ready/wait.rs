// SPDX-License-Identifier: Apache-2.0

//! How a thread sleeps on one session: until the ring or the kernel's connection has something for it.

use crate::conn::{offer, peer, recall, stream, Phase, Session};
use crate::sys::errno::{self, EAGAIN, EINTR, EINVAL};
use crate::sys::{clock, real, waiter, Deadline, Outcome, NO_FD};
use core::time::Duration;
use libc::{c_int, pollfd, timeval, POLLIN, POLLOUT, POLLRDHUP};

/// Waits until the session may be readable, for SO_RCVTIMEO at most.
pub fn readable(session: &'static Session, fd: c_int) -> Outcome<()> {
    sleep(session, fd, libc::SO_RCVTIMEO, POLLIN | POLLRDHUP, || {
        let Some(rings) = session.rings() else { return false };
        rings.receive().consumer_waits();
        let left = rings.receive().is_closed() && session.end().receive.phase() == Phase::Ring;
        session.is_readable(&rings) || left && session.recalled(&rings) == Some(0)
    })
}

/// How long the kernel's connection may have more octets before that is noticed, if it has some already.
const GLANCE: Duration = Duration::from_millis(4);

/// Waits until a receive that takes nothing may get more than `seen` octets, for SO_RCVTIMEO at most. False if
/// nothing further can come.
pub fn further(session: &'static Session, fd: c_int, seen: usize, deadline: Deadline) -> Outcome<bool> {
    let ring = || session.rings().filter(|_| session.end().receive.phase() == Phase::Ring);
    let is_full = || ring().is_some_and(|rings| seen as u64 >= rings.capacity);
    if is_full() || real::poll_or_suspect(fd, POLLRDHUP) != 0 {
        return Ok(false);
    }
    let has_more = || {
        ring().inspect(|rings| rings.receive().consumer_waits());
        stream::queued(session, fd) > seen
    };
    // In the ring's phase the peer wakes this end. Before it the kernel's octets may become more.
    let glance = if ring().is_some() { None } else { Some(GLANCE) };
    let limit = match (deadline.left(), glance) {
        (Some(left), Some(glance)) => Some(left.min(glance)),
        (left, glance) => left.or(glance),
    };
    match sleep_for(session, fd, Deadline::after(limit), limit.is_none(), POLLRDHUP, has_more) {
        Err(EAGAIN) if !deadline.is_over() => Ok(true),
        result => result.map(|()| true),
    }
}

/// Returns the end of SO_RCVTIMEO from now on.
pub fn limit_of_receive(fd: c_int) -> Deadline {
    Deadline::after(time_limit(fd, libc::SO_RCVTIMEO))
}

/// Waits until the session may be writable, for SO_SNDTIMEO at most.
pub fn writable(session: &'static Session, fd: c_int) -> Outcome<()> {
    let in_ring = session.end().send.phase() == Phase::Ring;
    let events = if in_ring { POLLRDHUP } else { POLLOUT };
    let result = sleep(session, fd, libc::SO_SNDTIMEO, events, || {
        let Some(rings) = session.rings().filter(|_| in_ring) else { return false };
        session.await_room(&rings);
        session.is_writable(&rings)
    });
    if in_ring {
        peer::suspect(session, fd, real::poll_or_suspect(fd, POLLRDHUP));
    }
    result
}

/// Polls the socket and the session's event. `is_ready` publishes that this end waits, then looks again.
fn sleep(session: &'static Session, fd: c_int, option: c_int, events: i16, is_ready: impl Fn() -> bool) -> Outcome<()> {
    let limit = time_limit(fd, option);
    sleep_for(session, fd, Deadline::after(limit), limit.is_none(), events, is_ready)
}

/// Like `sleep`, with a time limit of its own. A signal may not end a call that restarts.
fn sleep_for(
    session: &'static Session,
    fd: c_int,
    deadline: Deadline,
    may_restart: bool,
    events: i16,
    is_ready: impl Fn() -> bool,
) -> Outcome<()> {
    loop {
        let event = session.event();
        let was_attached = session.is_attached();
        let waiter = waiter::arm(event.into_iter());
        let Some(waiter) = waiter.filter(|_| event.is_some()) else {
            stream::leave_to_kernel(session);
            return Ok(());
        };
        recall::answer(session, fd);
        if is_ready() || session.is_attached() != was_attached {
            return Ok(());
        }
        let mut fds = [
            pollfd { fd, events, revents: 0 },
            pollfd { fd: waiter, events: POLLIN, revents: 0 },
            pollfd { fd: session.offer_event().unwrap_or(NO_FD), events: POLLIN, revents: 0 },
        ];
        let result = match poll(&mut fds, deadline) {
            // RLIMIT_NOFILE does not allow three.
            Err(EINVAL) if was_attached => waiter::wait_with(waiter, fd, events, deadline),
            Err(EINVAL) => {
                stream::leave_to_kernel(session);
                return Ok(());
            }
            other => other,
        };
        match result {
            Err(EINTR) if may_restart && restarts() => continue,
            Err(error) => return Err(error),
            Ok(0) => return Err(EAGAIN),
            Ok(_) => {}
        }
        offer::look(session, fd);
        return Ok(());
    }
}

/// Waits for a descriptor that is no session, as long as it takes.
pub fn pipe(fd: c_int, events: i16) -> Outcome<()> {
    loop {
        match poll(&mut [pollfd { fd, events, revents: 0 }], Deadline::after(None)) {
            Err(EINTR) if restarts() => {}
            other => return other.map(drop),
        }
    }
}

fn poll(fds: &mut [pollfd], deadline: Deadline) -> Outcome {
    let left = deadline.left().map(clock::to_timespec);
    let left = left.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the descriptors are this caller's; no signal mask.
    let n = unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, left, core::ptr::null()) };
    errno::outcome(n as isize)
}

/// Returns the time that SO_RCVTIMEO or SO_SNDTIMEO allow; None is for ever.
fn time_limit(fd: c_int, option: c_int) -> Option<Duration> {
    let mut value = timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of::<timeval>() as libc::socklen_t;
    let place = core::ptr::from_mut(&mut value).cast();
    // SAFETY: a timeval, as these options return.
    unsafe { real::getsockopt(fd, libc::SOL_SOCKET, option, place, &mut length) };
    let limit = Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
    (!limit.is_zero()).then_some(limit)
}

/// Returns whether a call that a signal interrupted goes on. poll(2) never does, but recv(2) does after
/// a handler with SA_RESTART. Which signal came is not known, so it goes on only if all handlers have that flag.
fn restarts() -> bool {
    // Handlers of faults run on the thread that caused them, which does not wait.
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];
    (1..=64).filter(|signal| !faults.contains(signal)).all(|signal| {
        // SAFETY: zero is a valid sigaction.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: only asks for the action of a signal.
        let known = unsafe { real::sigaction(signal, core::ptr::null(), &mut action) } == 0;
        let handled = known && action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        !handled || action.sa_flags & libc::SA_RESTART != 0
    })
}

// SPDX-License-Identifier: Apache-2.0

//! What the kernel's instance knows of sessions: their sockets and events, and how that follows when something
//! changes.

use super::entry::{Entry, Registration};
use super::queue::Inner;
use super::tag::Tag;
use super::{Epoll, ET, EXCLUSIVE, ONESHOT};
use crate::sys::errno::{self, EBADF, EEXIST};
use crate::sys::{lock, real, EventFd, Fd, Guard, Outcome, NO_FD};
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};

/// The interest of an entry that has woken a sleeper, and has to be registered again.
const WOKEN: u32 = u32::MAX;

impl Epoll {
    /// Prepares for an instance that is itself polled, or in another instance.
    pub fn watch(&self) {
        let mut inner = self.inner.lock();
        if self.wakeup.number().is_some() || self.blind.load(Ordering::Relaxed) {
            // The program may have received since what it was reported for.
            return self.update_wakeup(&mut inner);
        }
        let add = |event: &Fd| self.kernel(EPOLL_CTL_ADD, event.number(), EPOLLIN as u32, &Tag::Wakeup).is_ok();
        let Some(event) = EventFd::make().filter(add) else {
            self.blind.store(true, Ordering::Relaxed);
            for slot in 0..inner.entries.len() {
                self.fall_back(&mut inner, slot);
            }
            return;
        };
        self.wakeup.put(Some(event));
        inner.arm_all();
        self.update_wakeup(&mut inner);
    }

    /// Makes a session whose event this instance cannot have go on by the kernel. A sleeper is woken for what its
    /// ring has by the only other thing that the kernel knows of it: its socket, which is writable.
    fn fall_back(&self, inner: &mut Guard<Inner>, slot: usize) {
        let blind = self.blind.load(Ordering::Relaxed);
        let Some(entry) =
            inner.entry_mut(slot).filter(|e| !e.state.is_disabled() && (blind || e.session.is_attached()))
        else {
            return;
        };
        entry.session.fall_back();
        if blind || self.sleepers.load(Ordering::SeqCst) > 0 {
            entry.interest = WOKEN;
            let _ = self.kernel(EPOLL_CTL_MOD, entry.registered(), EPOLLOUT as u32 | ONESHOT, &entry.socket());
        }
    }

    pub fn update_wakeup(&self, inner: &mut Inner) {
        if self.wakeup.number().is_none() {
            return;
        }
        inner.settle();
        match inner.queue.is_empty() {
            true => self.wakeup.drain(),
            false => self.wakeup.signal(),
        }
    }

    pub fn kernel(&self, operation: c_int, fd: c_int, events: u32, tag: &Tag) -> Outcome<()> {
        let mut event = epoll_event { events, u64: tag.pack() };
        // SAFETY: the event is this function's.
        let result = unsafe { real::epoll_ctl(self.fd.get().ok_or(EBADF)?, operation, fd, &mut event) };
        errno::outcome(result as isize).map(|_| ())
    }

    /// Adds the session's event, and has the next wait look at the session.
    pub fn add_event(&self, inner: &mut Guard<Inner>, slot: usize) {
        let Some(entry) = inner.entry_mut(slot) else { return };
        if !entry.has_event {
            entry.has_event = true;
            let event = entry.session.own_event.number().unwrap_or(NO_FD);
            let added = self.kernel(EPOLL_CTL_ADD, event, EPOLLIN as u32 | ET, &entry.event());
            // Another descriptor of the same session may have added it.
            if !matches!(added, Ok(()) | Err(EEXIST)) || self.blind.load(Ordering::Relaxed) {
                self.fall_back(inner, slot);
            }
        }
        self.refresh(inner, slot);
    }

    /// Makes the next wait look at an entry, also one that sleeps now.
    pub fn refresh(&self, inner: &mut Guard<Inner>, slot: usize) {
        let Some(entry) = inner.entry_mut(slot) else { return };
        let session = entry.session;
        entry.edge = true;
        inner.enqueue(slot);
        self.update_wakeup(&mut *inner);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            session.wake();
        }
    }

    /// Makes the kernel know a socket by a copy of its descriptor. If there is no room for one the kernel goes on to
    /// report what was registered last, which nobody can change: all that the program asked for, without rings.
    pub fn rename(&self, entry: &mut Entry, fd: c_int) {
        let events = if entry.state.is_disabled() { ET } else { entry.kernel_events() };
        // SAFETY: fcntl of a descriptor.
        let copy = Fd::adopt(unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) });
        let add = |copy: &Fd| self.kernel(EPOLL_CTL_ADD, copy.number(), events, &entry.socket()).is_ok();
        if let Some(copy) = copy.filter(add) {
            let _ = self.kernel(EPOLL_CTL_DEL, fd, 0, &Tag::Wakeup);
            (entry.registration, entry.interest) = (Registration::Copy(copy), events);
            return;
        }
        entry.session.fall_back();
        entry.interest = if entry.state.is_disabled() { ET } else { entry.events };
        let _ = self.kernel(EPOLL_CTL_MOD, fd, entry.interest, &entry.socket());
    }

    /// Returns whether this process may change the instance: a child of fork only if the process that made the instance
    /// has ended.
    pub fn is_own(&self) -> bool {
        let maker = self.process.load(Ordering::Relaxed);
        maker == lock::process() || lock::has_ended(maker)
    }

    /// Registers the events of a socket again. The kernel does not change exclusive ones.
    pub fn reregister(&self, entry: &mut Entry) -> Outcome<()> {
        let events = entry.kernel_events();
        entry.interest = events;
        if entry.events & EXCLUSIVE == 0 {
            return self.kernel(EPOLL_CTL_MOD, entry.registered(), events, &entry.socket());
        }
        self.kernel(EPOLL_CTL_DEL, entry.registered(), 0, &Tag::Wakeup)?;
        self.kernel(EPOLL_CTL_ADD, entry.registered(), events, &entry.socket())
    }

    /// Makes the kernel report no more of a socket than is needed, once it has: it would do so again and again.
    pub fn trim(&self, inner: &mut Guard<Inner>, slot: usize) {
        let Some(entry) = inner.entry_mut(slot) else { return };
        let ended =
            entry.has_interest() && entry.interest != entry.kernel_events() && entry.kernel & EPOLLRDHUP as u32 != 0;
        if ended || entry.interest == WOKEN {
            let _ = self.reregister(entry);
        }
    }
}

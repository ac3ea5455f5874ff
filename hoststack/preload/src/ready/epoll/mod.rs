// SPDX-License-Identifier: Apache-2.0

//! Sessions in the program's epoll instances.
//!
//! A session is in the kernel's instance twice: its socket, for the kernel's connection and its end, and its event,
//! edge-triggered, which the peer writes when this end has published that it may sleep. Both carry a tag instead of the
//! program's data. Which sessions may be ready is a queue here, as it is in the kernel for sockets: a session leaves
//! the queue when its rings have nothing. Then the next wait looks at it, and before a thread sleeps, the peer is asked
//! to wake it.

mod entry;
mod kernel;
mod queue;
mod registration;
mod report;
mod state;
mod tag;
mod watcher;

use crate::conn::Session;
use crate::sys::errno::{EEXIST, EFAULT, EINVAL, ENOENT};
use crate::sys::{lock, EventFd, Guard, Lock, Number, Outcome};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use entry::Entry;
pub use kernel::kernel_wait;
use libc::{c_int, epoll_event, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT};
use libc::{EPOLLRDHUP, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};
use queue::Inner;
use tag::Tag;

const END_BITS: u32 = (EPOLLERR | EPOLLHUP | EPOLLRDHUP) as u32;
const ET: u32 = EPOLLET as u32;
const ONESHOT: u32 = EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = EPOLLEXCLUSIVE as u32;

pub struct Epoll {
    fd: Number,
    /// The process that made it. A child of fork has the same instance of the kernel, but must not change it.
    process: AtomicU32,
    /// Descriptors of the instance in this process.
    descriptors: AtomicUsize,
    /// Waits of this process that use it now, and one for all of its descriptors: a wait goes on when the last of these
    /// is closed, and the instance is used again when nobody does. AcqRel: what all of them did comes before recycle().
    holders: AtomicUsize,
    /// The release of make() pairs with the exchange of the last holder.
    live: AtomicBool,
    /// SeqCst, with the lock of `inner`: a thread that falls asleep sees what is queued, or the one that has queued it
    /// sees the sleeper.
    sleepers: AtomicUsize,
    /// Readable while the queue is not empty; only for an instance that is itself polled.
    wakeup: EventFd,
    /// The wakeup event could not be had, so its sessions stay on the kernel.
    blind: AtomicBool,
    inner: Lock<Inner>,
}

static POOL: Lock<Vec<&'static Epoll>> = Lock::new(Vec::new());

impl Epoll {
    pub fn make(fd: c_int) -> &'static Epoll {
        let epoll = POOL.lock().pop().unwrap_or_else(|| {
            Box::leak(Box::new(Epoll {
                fd: Number::none(),
                process: AtomicU32::new(0),
                descriptors: AtomicUsize::new(0),
                holders: AtomicUsize::new(0),
                live: AtomicBool::new(false),
                sleepers: AtomicUsize::new(0),
                wakeup: EventFd::empty(),
                blind: AtomicBool::new(false),
                inner: Lock::new(Inner::default()),
            }))
        });
        epoll.fd.set(Some(fd));
        epoll.process.store(lock::process(), Ordering::Relaxed);
        epoll.descriptors.store(1, Ordering::Relaxed);
        epoll.blind.store(false, Ordering::Relaxed);
        epoll.hold();
        epoll.live.store(true, Ordering::Release);
        epoll
    }

    pub fn hold(&self) {
        self.holders.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops what hold took.
    pub fn release(&'static self) {
        let is_last = self.holders.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && self.descriptors.load(Ordering::Relaxed) == 0 && self.live.swap(false, Ordering::AcqRel) {
            self.recycle();
        }
    }

    /// Resets the counts in a child of fork, which has no thread that waits.
    pub fn after_fork(&self) {
        self.holders.store(1, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
    }

    pub fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops a descriptor whose entry in the table, that of `fd`, was removed. `other` is a descriptor that remains.
    pub fn drop_descriptor(&'static self, fd: c_int, other: impl FnOnce() -> Option<c_int>) {
        if self.descriptors.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.fd.set(None);
            return self.release();
        }
        if self.fd.get() == Some(fd) {
            self.fd.set(other());
        }
    }

    /// Gives an instance without descriptors back to the pool.
    fn recycle(&'static self) {
        let entries = core::mem::take(&mut *self.inner.lock()).entries;
        for entry in entries.into_iter().flatten() {
            entry.session.watches.lock().retain(|&(epoll, _)| !core::ptr::addr_eq(epoll, self));
            entry.session.is_not_watched_by(self);
            entry.session.release();
        }
        self.wakeup.put(None);
        POOL.lock().push(self);
    }

    /// Does epoll_ctl(2) for a session.
    pub fn control(
        &'static self,
        operation: c_int,
        fd: c_int,
        session: &'static Session,
        wanted: Option<epoll_event>,
    ) -> Outcome<()> {
        match (operation, wanted) {
            (EPOLL_CTL_ADD, Some(wanted)) => self.add(fd, session, wanted),
            (EPOLL_CTL_MOD, Some(wanted)) => self.modify(fd, wanted),
            (EPOLL_CTL_DEL, _) => self.delete(fd),
            (_, None) => Err(EFAULT),
            _ => Err(EINVAL),
        }
    }

    fn add(&'static self, fd: c_int, session: &'static Session, wanted: epoll_event) -> Outcome<()> {
        let mut inner = self.inner.lock();
        if inner.by_fd.contains_key(&fd) {
            return Err(EEXIST);
        }
        let slot = inner.insert(Entry::new(fd, session, wanted.events, wanted.u64));
        let Some(entry) = inner.entry_mut(slot) else { return Err(ENOENT) };
        entry.interest = entry.kernel_events();
        if let Err(error) = self.kernel(EPOLL_CTL_ADD, fd, entry.interest, &entry.socket()) {
            inner.remove(slot);
            return Err(error);
        }
        session.hold();
        session.watches.lock().push((self, slot));
        if entry.interest != entry.kernel_events() {
            // A direction has moved meanwhile, and did not find the watch.
            let _ = self.reregister(entry);
        }
        if session.is_attached() {
            self.add_event(&mut inner, slot);
        }
        Ok(())
    }

    /// Returns whether the program has added a number.
    pub fn has(&self, fd: c_int) -> bool {
        self.inner.lock().by_fd.contains_key(&fd)
    }

    fn modify(&self, fd: c_int, wanted: epoll_event) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let slot = *inner.by_fd.get(&fd).ok_or(ENOENT)?;
        let entry = inner.entry_mut(slot).ok_or(ENOENT)?;
        if (entry.events | wanted.events) & EXCLUSIVE != 0 {
            return Err(EINVAL);
        }
        let before = (entry.events, entry.data);
        (entry.events, entry.data) = (wanted.events, wanted.u64);
        if !entry.has_interest() {
            if let Err(error) = self.kernel(EPOLL_CTL_MOD, fd, entry.kernel_events(), &entry.socket()) {
                (entry.events, entry.data) = before;
                return Err(error);
            }
            entry.interest = entry.kernel_events();
        }
        entry.state.enable();
        entry.kernel = 0;
        (entry.moved, entry.reported, entry.peer_ended) = (false, 0, false);
        if entry.has_event {
            self.refresh(&mut inner, slot);
        }
        Ok(())
    }

    fn delete(&self, fd: c_int) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let slot = *inner.by_fd.get(&fd).ok_or(ENOENT)?;
        let result = self.kernel(EPOLL_CTL_DEL, fd, 0, &Tag::Wakeup);
        self.forget(&mut inner, slot, true);
        result
    }

    /// Removes an entry. Its session's event goes to another entry of the session, or is removed if there is none.
    pub fn forget(&self, inner: &mut Guard<Inner>, slot: usize, in_kernel: bool) {
        let Some(entry) = inner.remove(slot) else { return };
        let other = {
            let mut watches = entry.session.watches.lock();
            watches.retain(|&(epoll, at)| !(core::ptr::addr_eq(epoll, self) && at == slot));
            watches.iter().find(|&&(epoll, _)| core::ptr::addr_eq(epoll, self)).map(|&(_, other)| other)
        };
        let other = other.and_then(|other| inner.entry_of(other, entry.session)).map(|other| other.event());
        if other.is_none() {
            entry.session.is_not_watched_by(self);
        }
        let event = entry.session.own_event.number().filter(|_| entry.has_event && in_kernel);
        if let Some(event) = event {
            let _ = match other {
                Some(other) => self.kernel(EPOLL_CTL_MOD, event, EPOLLIN as u32 | ET, &other),
                None => self.kernel(EPOLL_CTL_DEL, event, 0, &Tag::Wakeup),
            };
        }
        entry.session.release();
    }
}

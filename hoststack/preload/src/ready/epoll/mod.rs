// SPDX-License-Identifier: Apache-2.0

//! Sessions in the program's epoll instances.
//!
//! A session is in the kernel's instance twice: its socket, for the kernel's connection and its end, and its event,
//! edge-triggered, which the peer writes when this end has published that it may sleep. Both carry a tag instead of the
//! program's data. Which sessions may be ready is a queue here, as it is in the kernel for sockets: a session
//! leaves the queue when its rings have nothing. Then the next wait looks at it, and before a thread sleeps, the peer is
//! asked to wake it.

mod entry;
mod kernel;
mod queue;
mod registration;
mod tag;
mod watcher;

use crate::conn::recall;
use crate::conn::session::Session;
use crate::conn::watch::WRITE_BITS;
use crate::sys::clock::Deadline;
use crate::sys::errno::{Outcome, EBADF, EEXIST, EFAULT, EINVAL, ENOENT};
use crate::sys::fd::{EventFd, Number};
use crate::sys::lock::{self, Guard, Lock};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use entry::Entry;
pub use kernel::kernel_wait;
use libc::{c_int, epoll_event, sigset_t, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT};
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
    /// Waits of this process that use it now, and one for all of its descriptors: a wait goes on when the last of these is
    /// closed, and the instance is used again when nobody does.
    holders: AtomicUsize,
    live: AtomicBool,
    sleepers: AtomicUsize,
    /// Readable while the queue is not empty; only for an instance that is itself polled.
    nudge: EventFd,
    /// The nudge could not be had, so its sessions stay on the kernel.
    blind: AtomicBool,
    inner: Lock<Inner>,
}

static POOL: Lock<Vec<&'static Epoll>> = Lock::new(Vec::new());

/// Numbers of waits.
static TURNS: AtomicU64 = AtomicU64::new(1);

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
                nudge: EventFd::empty(),
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

    /// let_go drops what hold took.
    pub fn let_go(&'static self) {
        let is_last = self.holders.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && self.descriptors.load(Ordering::Relaxed) == 0 && self.live.swap(false, Ordering::AcqRel) {
            self.recycle();
        }
    }

    /// after_fork: the child has no thread that waits.
    pub fn after_fork(&self) {
        self.holders.store(1, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
    }

    pub fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::Relaxed);
    }

    /// drop_descriptor is called after the entry of `fd` was removed. `other` is a descriptor that remains.
    pub fn drop_descriptor(&'static self, fd: c_int, other: impl FnOnce() -> Option<c_int>) {
        if self.descriptors.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.fd.set(None);
            return self.let_go();
        }
        if self.fd.get() == Some(fd) {
            self.fd.set(other());
        }
    }

    /// recycle gives an instance without descriptors back to the pool.
    fn recycle(&'static self) {
        let entries = core::mem::take(&mut *self.inner.lock()).entries;
        for entry in entries.into_iter().flatten() {
            entry.session.watches.lock().retain(|&(epoll, _)| !core::ptr::addr_eq(epoll, self));
            entry.session.is_not_watched_by(self);
            entry.session.let_go();
        }
        self.nudge.put(None);
        POOL.lock().push(self);
    }

    /// control is epoll_ctl(2) for a session.
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
        let Some(entry) = &mut inner.entries[slot] else { return Err(ENOENT) };
        entry.told = entry.kernel_events();
        if let Err(error) = self.kernel(EPOLL_CTL_ADD, fd, entry.told, &entry.socket()) {
            inner.remove(slot);
            return Err(error);
        }
        session.hold();
        session.watches.lock().push((self, slot));
        if entry.told != entry.kernel_events() {
            // A direction has moved meanwhile, and did not find the watch.
            let _ = self.reregister(entry);
        }
        if session.is_attached() {
            self.add_event(&mut inner, slot);
        }
        Ok(())
    }

    /// has reports whether the program has added a number.
    pub fn has(&self, fd: c_int) -> bool {
        self.inner.lock().by_fd.contains_key(&fd)
    }

    fn modify(&self, fd: c_int, wanted: epoll_event) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let slot = *inner.by_fd.get(&fd).ok_or(ENOENT)?;
        let entry = inner.entries[slot].as_mut().ok_or(ENOENT)?;
        if (entry.events | wanted.events) & EXCLUSIVE != 0 {
            return Err(EINVAL);
        }
        let before = (entry.events, entry.data);
        (entry.events, entry.data) = (wanted.events, wanted.u64);
        if !entry.is_told() {
            if let Err(error) = self.kernel(EPOLL_CTL_MOD, fd, entry.kernel_events(), &entry.socket()) {
                (entry.events, entry.data) = before;
                return Err(error);
            }
            entry.told = entry.kernel_events();
        }
        (entry.disabled, entry.kernel) = (false, 0);
        (entry.moved, entry.reported, entry.peer_ended) = (false, 0, false);
        if entry.has_event {
            self.refresh(&mut inner, slot);
        }
        Ok(())
    }

    fn delete(&self, fd: c_int) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let slot = *inner.by_fd.get(&fd).ok_or(ENOENT)?;
        let result = self.kernel(EPOLL_CTL_DEL, fd, 0, &Tag::Nudge);
        self.forget(&mut inner, slot, true);
        result
    }

    /// forget removes an entry. Its session's event goes to another entry of the session, or is removed if there is none.
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
                None => self.kernel(EPOLL_CTL_DEL, event, 0, &Tag::Nudge),
            };
        }
        entry.session.let_go();
    }

    /// collect_before_kernel moves ready entries of the queue to `out`, except those that have to be behind what the kernel
    /// has, and returns how many it has moved.
    fn collect_before_kernel(&self, turn: u64, out: &mut [epoll_event]) -> usize {
        self.collect_if(turn, out, 0, Entry::defer)
    }

    /// collect moves ready entries of the queue to `out` behind the first `n`, and returns how many there are then.
    fn collect(&self, turn: u64, out: &mut [epoll_event], n: usize) -> usize {
        self.inner.lock().put_deferred_last();
        self.collect_if(turn, out, n, |_| false)
    }

    fn collect_if(
        &self,
        turn: u64,
        out: &mut [epoll_event],
        mut n: usize,
        leaves: impl Fn(&mut Entry) -> bool,
    ) -> usize {
        let mut inner = self.inner.lock();
        inner.look(self);
        inner.turn = turn;
        let before = n;
        for _ in 0..inner.queue.len() {
            if n == out.len() {
                break;
            }
            let Some(slot) = inner.queue.pop_front() else { break };
            match inner.entries[slot].as_mut().is_some_and(&leaves) {
                true => inner.queue.push_back(slot),
                false => n += usize::from(self.report(&mut inner, slot, out, n)),
            }
        }
        if n > before && !inner.queue.is_empty() && self.sleepers.load(Ordering::SeqCst) > 0 {
            if let Some(entry) = inner.queue.front().and_then(|&slot| inner.entries[slot].as_ref()) {
                entry.session.wake();
            }
        }
        self.update_nudge(&mut inner);
        n
    }

    /// report stores the events of an entry, if it has any, and decides whether it stays in the queue.
    fn report(&self, inner: &mut Guard<Inner>, slot: usize, out: &mut [epoll_event], place: usize) -> bool {
        let turn = inner.turn;
        let lazy = self.is_polled_by_one_thread();
        let Some(entry) = &mut inner.entries[slot] else { return false };
        entry.queued = false;
        if entry.turn > turn {
            // A wait that has begun later has reported it: of a handler of signals, or of another thread.
            inner.enqueue(slot);
            return false;
        }
        if entry.turn == turn {
            // What has come since belongs to the same event.
            let is_edge = entry.events & ET != 0;
            if is_edge || entry.kernel != 0 {
                let events = entry.take_ready(None);
                entry.reported |= events;
                out[entry.place].events |= events;
            }
            if !is_edge {
                inner.enqueue(slot);
            }
            return false;
        }
        let by_kernel = entry.kernel != 0;
        entry.kernel |= entry.rest_of_oneshot();
        let was_hot = entry.hot;
        // What finds no room from now on waits for another edge.
        let room_waits = entry.session.side().room_waits.load(Ordering::Relaxed);
        let events = entry.take_ready(lazy.then_some(self));
        if entry.hot && !was_hot {
            inner.hot.push(slot);
        }
        if events == 0 {
            let once = inner.entries[slot].as_mut().filter(|entry| by_kernel && entry.events & ONESHOT != 0);
            if let Some(entry) = once.filter(|entry| !entry.disabled) {
                // The kernel has reported what the program did not ask for, and reports nothing more.
                let _ = self.reregister(entry);
            }
            return false;
        }
        let Some(entry) = &mut inner.entries[slot] else { return false };
        let events = events | entry.room_beside_edge();
        entry.deferred = false;
        out[place] = epoll_event { events, u64: entry.data };
        (entry.turn, entry.place) = (turn, place);
        entry.reported = entry.reported & WRITE_BITS | events;
        if events & WRITE_BITS != 0 {
            entry.room_waits = room_waits;
        }
        if entry.events & ONESHOT != 0 {
            entry.disabled = true;
            if !by_kernel {
                // ERR and HUP are always reported, but with ET only once.
                entry.told = ET;
                let _ = self.kernel(EPOLL_CTL_MOD, entry.registered(), ET, &entry.socket());
            }
        } else if entry.events & ET == 0 && entry.has_event {
            inner.enqueue(slot);
        }
        true
    }

    /// is_polled_by_one_thread reports whether nobody else sleeps on the instance: then the next wait of this thread looks
    /// at hot entries before it sleeps.
    fn is_polled_by_one_thread(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) == 0 && self.nudge.number().is_none()
    }

    /// sort goes through the first `n` of `out`, which the kernel reported: events of sessions go to the queue, others
    /// stay. It returns how many do.
    fn sort(&self, out: &mut [epoll_event], n: usize) -> usize {
        let (mut kept, mut recalled) = (0, Vec::new());
        let mut inner = self.inner.lock();
        for i in 0..n {
            let event = out[i];
            match Tag::unpack(event.u64) {
                None => {
                    out[kept] = event;
                    kept += 1;
                }
                Some(Tag::Nudge) => {}
                Some(Tag::Socket(place)) => {
                    let Some(slot) = inner.current(place) else { continue };
                    inner.socket_event(slot, event.events);
                    self.trim(&mut inner, slot);
                }
                Some(Tag::Event(place)) => {
                    let Some(slot) = inner.current(place) else { continue };
                    inner.own_event(self, slot);
                    if let Some(entry) = inner.entry(slot).filter(|entry| entry.is_recalled()) {
                        // Another thread may close it when the lock is free.
                        entry.session.hold();
                        recalled.push((entry.session, entry.registered()));
                    }
                }
            }
        }
        drop(inner);
        for (session, fd) in recalled {
            recall::answer(session, fd);
            session.let_go();
        }
        kept
    }

    /// wait is epoll_wait(2).
    pub fn wait(&self, fd: c_int, out: &mut [epoll_event], limit: Option<Duration>, mask: *const sigset_t) -> Outcome {
        let deadline = Deadline::after(limit);
        let (mut fd, mut left) = (fd, limit);
        loop {
            let turn = TURNS.fetch_add(1, Ordering::Relaxed);
            let first = self.share(out.len());
            let mut n = self.collect_before_kernel(turn, &mut out[..first]);
            if n < out.len() {
                match self.ask(fd, &mut out[n..], n > 0, left, mask) {
                    Ok(more) => n += more,
                    Err(error) if n == 0 => return Err(error),
                    Err(_) => {}
                }
                n = self.collect(turn, out, n);
            }
            if n > 0 || deadline.is_over() {
                return Ok(n);
            }
            left = deadline.left();
            // The number may be closed by now, and be another file's.
            fd = self.fd.get().ok_or(EBADF)?;
        }
    }

    /// share is how many events sessions may have before the kernel is asked, so that neither starves the other.
    fn share(&self, most: usize) -> usize {
        if most > 1 {
            return most - most / 4;
        }
        let mut inner = self.inner.lock();
        inner.kernel_first = !inner.kernel_first;
        usize::from(!inner.kernel_first)
    }

    /// ask gets events from the kernel, and waits for them unless there are others or the queue has work.
    fn ask(
        &self,
        fd: c_int,
        out: &mut [epoll_event],
        has_others: bool,
        limit: Option<Duration>,
        mask: *const sigset_t,
    ) -> Outcome {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let idle = !has_others && self.inner.lock().fall_asleep();
        let left = match idle {
            true => limit,
            false => Some(Duration::ZERO),
        };
        let result = kernel_wait(fd, out, left, mask);
        if self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.wake_up();
        }
        Ok(self.sort(out, result?))
    }

    /// wake_up has peers of hot entries publish without waking this end, unless another thread has fallen asleep since.
    fn wake_up(&self) {
        let inner = self.inner.lock();
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            inner.hot_rings().for_each(|rings| rings.receive().consumer_is_awake());
        }
    }

    /// translate sorts what a wait returned that began before the instance had sessions.
    pub fn translate(&self, out: &mut [epoll_event], n: usize) -> usize {
        let kept = self.sort(out, n);
        self.collect(TURNS.fetch_add(1, Ordering::Relaxed), out, kept)
    }
}

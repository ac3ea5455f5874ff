// SPDX-License-Identifier: Apache-2.0

//! epoll_wait(2): what the entries of an instance report, and what the kernel does.

use super::entry::Entry;
use super::queue::Inner;
use super::tag::Tag;
use super::{kernel_wait, Epoll, ET, ONESHOT};
use crate::conn::{recall, WRITE_BITS};
use crate::sys::errno::EBADF;
use crate::sys::{Deadline, Guard, Outcome};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use libc::{c_int, epoll_event, sigset_t, EPOLL_CTL_MOD};

/// Numbers of waits.
static WAITS: AtomicU64 = AtomicU64::new(1);

impl Epoll {
    /// Moves ready entries of the queue to `out`, except those that have to be behind what the kernel
    /// has, and returns how many it has moved.
    fn collect_before_kernel(&self, wait: u64, out: &mut [epoll_event]) -> usize {
        self.collect_if(wait, out, 0, Entry::defer)
    }

    /// Moves ready entries of the queue to `out` behind the first `n`, and returns how many there are then.
    fn collect(&self, wait: u64, out: &mut [epoll_event], n: usize) -> usize {
        self.inner.lock().put_deferred_last();
        self.collect_if(wait, out, n, |_| false)
    }

    fn collect_if(
        &self,
        wait: u64,
        out: &mut [epoll_event],
        mut n: usize,
        leaves: impl Fn(&mut Entry) -> bool,
    ) -> usize {
        let mut inner = self.inner.lock();
        inner.look(self);
        inner.wait = wait;
        let before = n;
        for _ in 0..inner.queue.len() {
            if n == out.len() {
                break;
            }
            let Some(slot) = inner.queue.pop_front() else { break };
            match inner.entry_mut(slot).is_some_and(&leaves) {
                true => inner.queue.push_back(slot),
                false => n += usize::from(self.report(&mut inner, slot, out, n)),
            }
        }
        if n > before && !inner.queue.is_empty() && self.sleepers.load(Ordering::SeqCst) > 0 {
            if let Some(entry) = inner.queue.front().and_then(|&slot| inner.entry(slot)) {
                entry.session.wake();
            }
        }
        self.update_wakeup(&mut inner);
        n
    }

    /// Stores the events of an entry, if it has any, and decides whether it stays in the queue.
    fn report(&self, inner: &mut Guard<Inner>, slot: usize, out: &mut [epoll_event], place: usize) -> bool {
        let wait = inner.wait;
        let lazy = self.is_polled_by_one_thread();
        let Some(entry) = inner.entry_mut(slot) else { return false };
        entry.state.dequeue();
        if entry.wait > wait {
            // A wait that has begun later has reported it: of a handler of signals, or of another thread.
            inner.enqueue(slot);
            return false;
        }
        if entry.wait == wait {
            // What has come since belongs to the same event.
            let is_edge = entry.events & ET != 0;
            if is_edge || entry.kernel != 0 {
                let events = entry.take_ready(None);
                entry.reported |= events;
                if let Some(reported) = out.get_mut(entry.place) {
                    reported.events |= events;
                }
            }
            if !is_edge {
                inner.enqueue(slot);
            }
            return false;
        }
        let by_kernel = entry.kernel != 0;
        entry.kernel |= entry.rest_of_oneshot();
        let was_polled = entry.state.is_polled();
        // What finds no room from now on waits for another edge.
        let room_waits = entry.session.end().room_waits.load(Ordering::Relaxed);
        let events = entry.take_ready(lazy.then_some(self));
        if entry.state.is_polled() && !was_polled {
            inner.busy.push(slot);
        }
        if events == 0 {
            let once = inner.entry_mut(slot).filter(|entry| by_kernel && entry.events & ONESHOT != 0);
            if let Some(entry) = once.filter(|entry| !entry.state.is_disabled()) {
                // The kernel has reported what the program did not ask for, and reports nothing more.
                let _ = self.reregister(entry);
            }
            return false;
        }
        let Some(entry) = inner.entry_mut(slot) else { return false };
        let events = events | entry.room_beside_edge();
        entry.deferred = false;
        if let Some(reported) = out.get_mut(place) {
            *reported = epoll_event { events, u64: entry.data };
        }
        (entry.wait, entry.place) = (wait, place);
        entry.reported = entry.reported & WRITE_BITS | events;
        if events & WRITE_BITS != 0 {
            entry.room_waits = room_waits;
        }
        if entry.events & ONESHOT != 0 {
            if !by_kernel {
                // ERR and HUP are always reported, but with ET only once.
                entry.interest = ET;
                let _ = self.kernel(EPOLL_CTL_MOD, entry.registered(), ET, &entry.socket());
            }
            inner.disable(slot);
        } else if entry.events & ET == 0 && entry.has_event {
            inner.enqueue(slot);
        }
        true
    }

    /// Returns whether nobody else sleeps on the instance: then the next wait of this thread looks
    /// at the busy-poll list before it sleeps.
    fn is_polled_by_one_thread(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) == 0 && self.wakeup.number().is_none()
    }

    /// Goes through the first `n` of `out`, which the kernel reported: events of sessions go to the queue, others
    /// stay. It returns how many do.
    fn sort(&self, out: &mut [epoll_event], n: usize) -> usize {
        let (mut kept, mut recalled) = (0, Vec::new());
        let mut inner = self.inner.lock();
        for i in 0..n {
            let Some(&event) = out.get(i) else { break };
            match Tag::unpack(event.u64) {
                None => {
                    out.swap(kept, i);
                    kept += 1;
                }
                Some(Tag::Wakeup) => {}
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
            session.release();
        }
        kept
    }

    /// Does epoll_wait(2).
    pub fn wait(&self, fd: c_int, out: &mut [epoll_event], limit: Option<Duration>, mask: *const sigset_t) -> Outcome {
        let deadline = Deadline::after(limit);
        let (mut fd, mut left) = (fd, limit);
        loop {
            let wait = WAITS.fetch_add(1, Ordering::Relaxed);
            let first = self.share(out.len());
            let mut n = self.collect_before_kernel(wait, out.get_mut(..first).unwrap_or_default());
            if n < out.len() {
                match self.ask(fd, out.get_mut(n..).unwrap_or_default(), n > 0, left, mask) {
                    Ok(more) => n += more,
                    Err(error) if n == 0 => return Err(error),
                    Err(_) => {}
                }
                n = self.collect(wait, out, n);
            }
            if n > 0 || deadline.is_over() {
                return Ok(n);
            }
            left = deadline.left();
            // The number may be closed by now, and be another file's.
            fd = self.fd.get().ok_or(EBADF)?;
        }
    }

    /// Returns how many events sessions may have before the kernel is asked, so that neither starves the other.
    fn share(&self, most: usize) -> usize {
        if most > 1 {
            return most - most / 4;
        }
        let mut inner = self.inner.lock();
        inner.kernel_first = !inner.kernel_first;
        usize::from(!inner.kernel_first)
    }

    /// Gets events from the kernel, and waits for them unless there are others or the queue has work.
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

    /// Disarms the wakeup flags of the busy-poll list, unless another thread has fallen asleep since.
    fn wake_up(&self) {
        let inner = self.inner.lock();
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            inner.busy_rings().for_each(|rings| rings.receive().consumer_is_awake());
        }
    }

    /// Sorts what a wait returned that began before the instance had sessions.
    pub fn translate(&self, out: &mut [epoll_event], n: usize) -> usize {
        let kept = self.sort(out, n);
        self.collect(WAITS.fetch_add(1, Ordering::Relaxed), out, kept)
    }
}

// SPDX-License-Identifier: Apache-2.0

//! The entries of an instance, and which of them are to be looked at.

use super::entry::Entry;
use super::tag::Place;
use super::{Epoll, END_BITS};
use crate::conn::end::Phase;
use crate::conn::peer;
use crate::conn::session::Session;
use crate::conn::watch::{READ_BITS, WRITE_BITS};
use crate::ring::memory::Rings;
use crate::sys::real;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use libc::c_int;

/// Looks at a session without news after which its peer is asked to wake this end.
const PATIENCE: u32 = 64;

/// A sleep without news counts as so many looks: it costs more than one.
const SLEEP: u32 = 8;

#[derive(Default)]
pub struct Inner {
    pub entries: Vec<Option<Entry>>,
    /// Of the entry that was inserted last.
    pub generation: u32,
    pub free: Vec<usize>,
    pub by_fd: BTreeMap<c_int, usize>,
    pub queue: VecDeque<usize>,
    /// Entries without news whose peers are not asked to wake this end: each wait looks at them.
    pub hot: Vec<usize>,
    pub kernel_first: bool,
    /// The number of the wait that reports now.
    pub turn: u64,
}

impl Inner {
    pub fn insert(&mut self, mut entry: Entry) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.generation = Place::next(self.generation);
        entry.at = Place { slot, generation: self.generation };
        self.by_fd.insert(entry.fd, slot);
        self.entries[slot] = Some(entry);
        slot
    }

    pub fn entry(&self, slot: usize) -> Option<&Entry> {
        self.entries.get(slot)?.as_ref()
    }

    /// Returns an entry that is still a session's: the watches of a session are read without the lock of the instance,
    /// from which the entry may have gone meanwhile.
    pub fn entry_of(&mut self, slot: usize, session: &Session) -> Option<&mut Entry> {
        self.entries.get_mut(slot)?.as_mut().filter(|entry| core::ptr::eq(entry.session, session))
    }

    /// Returns the slot of an entry for which the kernel has reported something, if it is still there.
    pub fn current(&self, place: Place) -> Option<usize> {
        self.entry(place.slot).filter(|entry| entry.at == place).map(|_| place.slot)
    }

    pub fn remove(&mut self, slot: usize) -> Option<Entry> {
        let entry = self.entries[slot].take()?;
        if entry.has_number() {
            self.by_fd.remove(&entry.fd);
        }
        if entry.queued {
            self.queue.retain(|&queued| queued != slot);
        }
        if entry.hot {
            self.hot.retain(|&hot| hot != slot);
        }
        self.free.push(slot);
        Some(entry)
    }

    /// Moves those behind the others that a wait has left until the kernel was asked.
    pub fn put_deferred_last(&mut self) {
        let is_deferred = |slot: &usize| self.entries[*slot].as_ref().is_some_and(|entry| entry.deferred);
        if self.queue.iter().any(is_deferred) {
            self.queue.make_contiguous().sort_by_key(is_deferred);
        }
    }

    /// Takes entries out of the queue that have nothing to report.
    pub fn settle(&mut self) {
        for slot in core::mem::take(&mut self.queue) {
            let Some(entry) = &mut self.entries[slot] else { continue };
            entry.queued = false;
            if entry.has_something() {
                self.enqueue(slot);
            }
        }
    }

    /// Enqueues hot entries that have news. Those without stay, for a while.
    pub fn look(&mut self, epoll: &Epoll) {
        self.review(|entry| {
            entry.looks += 1;
            let stays = entry.looks < PATIENCE && !entry.disabled && entry.session.watched_only_by(epoll);
            if !stays {
                entry.publish_waits();
            }
            (stays, entry.has_news())
        });
    }

    /// Makes peers of all hot entries wake this end.
    pub fn cool_all(&mut self) {
        self.review(|entry| {
            entry.publish_waits();
            (false, entry.has_news())
        });
    }

    /// Asks for each hot entry whether it stays hot, and whether it has news.
    pub fn review(&mut self, judge: impl Fn(&mut Entry) -> (bool, bool)) {
        let mut i = 0;
        while let Some(&slot) = self.hot.get(i) {
            let (stays, news) = self.entries[slot].as_mut().map_or((false, false), &judge);
            if stays && !news {
                i += 1;
                continue;
            }
            self.hot.swap_remove(i);
            if let Some(entry) = &mut self.entries[slot] {
                entry.hot = false;
                entry.fresh |= news;
            }
            if news {
                self.enqueue(slot);
            }
        }
    }

    /// Makes peers of hot entries wake this end for their next octets; false if there are some already, or
    /// other work.
    pub fn fall_asleep(&mut self) -> bool {
        if !self.queue.is_empty() {
            return false;
        }
        for &slot in &self.hot {
            if let Some(entry) = &mut self.entries[slot] {
                entry.looks += SLEEP;
            }
        }
        self.hot_rings().for_each(|rings| rings.receive().consumer_sleeps());
        !self.hot_entries().any(Entry::has_news)
    }

    pub fn hot_entries(&self) -> impl Iterator<Item = &Entry> {
        self.hot.iter().filter_map(|&slot| self.entry(slot))
    }

    pub fn hot_rings(&self) -> impl Iterator<Item = Rings> + '_ {
        self.hot_entries().filter_map(|entry| entry.session.rings())
    }

    pub fn enqueue(&mut self, slot: usize) {
        if let Some(entry) = self.entries[slot].as_mut().filter(|entry| !entry.queued) {
            entry.queued = true;
            self.queue.push_back(slot);
        }
    }

    pub fn socket_event(&mut self, slot: usize, events: u32) {
        let Some(entry) = self.entries.get_mut(slot).and_then(Option::as_mut) else { return };
        entry.kernel |= entry.news_of(events);
        entry.fresh = true;
        let in_ring = entry.has_event && entry.session.side().receive.phase() == Phase::Ring;
        if in_ring && events & READ_BITS != 0 && entry.session.side().shut.load(Ordering::Relaxed) == 0 {
            entry.session.suspect.store(true, Ordering::Relaxed);
        }
        peer::suspect(entry.session, entry.registered(), events as i16);
        if events & (END_BITS | READ_BITS) != 0 && peer::notice(entry.session, entry.registered()) {
            let all = (READ_BITS | WRITE_BITS | END_BITS) as i16;
            entry.kernel |= u32::from(real::poll_one(entry.registered(), all) as u16);
        }
        self.enqueue(slot);
    }

    /// Takes an event of the session for all descriptors by which the session was added to `epoll`.
    pub fn own_event(&mut self, epoll: &Epoll, slot: usize) {
        let Some(session) = self.entry(slot).map(|entry| entry.session) else { return };
        for &(_, slot) in session.watches.lock().iter().filter(|(e, _)| core::ptr::addr_eq(*e, epoll)) {
            let Some(entry) = self.entries.get_mut(slot).and_then(Option::as_mut) else { continue };
            entry.fresh |= entry.is_of_event() || entry.asks_again();
            self.enqueue(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::end;
    use crate::conn::session::Identity;
    use beeline_ring::Role;

    #[test]
    fn an_event_of_a_former_entry_is_not_that_of_the_next_one_in_its_place() {
        let identity = Identity { role: Role::Connector, side: end::make().unwrap(), ends: None };
        let session = Session::make(identity, 1);
        let mut inner = Inner::default();
        let slot = inner.insert(Entry::new(7, session, 0, 1));
        let first = inner.entry(slot).unwrap().at;
        assert_eq!(inner.current(first), Some(slot));
        inner.remove(slot);
        assert_eq!(inner.current(first), None, "without an entry");
        assert_eq!(inner.insert(Entry::new(8, session, 0, 2)), slot, "the place is used again");
        assert_eq!(inner.current(first), None, "with another entry");
        assert_eq!(inner.current(inner.entry(slot).unwrap().at), Some(slot));
    }
}

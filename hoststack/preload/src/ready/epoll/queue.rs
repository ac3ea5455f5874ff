// SPDX-License-Identifier: Apache-2.0

//! The entries of an instance, and which of them are to be looked at.

use super::entry::Entry;
use super::tag::Place;
use super::{Epoll, END_BITS};
use crate::conn::{peer, Phase, Session, READ_BITS, WRITE_BITS};
use crate::ring::Rings;
use crate::sys::real;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use libc::c_int;

/// Polls of an idle session before its wakeup flag is armed.
const IDLE_POLLS: u32 = 64;

/// An idle sleep counts as so many polls: it costs more than one.
const POLLS_OF_SLEEP: u32 = 8;

#[derive(Default)]
pub struct Inner {
    pub entries: Vec<Option<Entry>>,
    /// Of the entry that was inserted last.
    pub generation: u32,
    pub free: Vec<usize>,
    pub by_fd: BTreeMap<c_int, usize>,
    pub queue: VecDeque<usize>,
    /// The busy-poll list: idle entries whose wakeup flags are not armed. Each wait polls them.
    pub busy: Vec<usize>,
    pub kernel_first: bool,
    /// The number of the wait that reports now.
    pub wait: u64,
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
        if let Some(place) = self.entries.get_mut(slot) {
            *place = Some(entry);
        }
        slot
    }

    pub fn entry(&self, slot: usize) -> Option<&Entry> {
        self.entries.get(slot)?.as_ref()
    }

    pub fn entry_mut(&mut self, slot: usize) -> Option<&mut Entry> {
        self.entries.get_mut(slot)?.as_mut()
    }

    /// Returns an entry that is still a session's: the watches of a session are read without the lock of the instance,
    /// from which the entry may have gone meanwhile.
    pub fn entry_of(&mut self, slot: usize, session: &Session) -> Option<&mut Entry> {
        self.entry_mut(slot).filter(|entry| core::ptr::eq(entry.session, session))
    }

    /// Returns the slot of an entry for which the kernel has reported something, if it is still there.
    pub fn current(&self, place: Place) -> Option<usize> {
        self.entry(place.slot).filter(|entry| entry.at == place).map(|_| place.slot)
    }

    pub fn remove(&mut self, slot: usize) -> Option<Entry> {
        let entry = self.entries.get_mut(slot)?.take()?;
        if entry.has_number() {
            self.by_fd.remove(&entry.fd);
        }
        if entry.state.is_queued() {
            self.queue.retain(|&queued| queued != slot);
        }
        if entry.state.is_polled() {
            self.busy.retain(|&busy| busy != slot);
        }
        self.free.push(slot);
        Some(entry)
    }

    /// Moves those behind the others that a wait has left until the kernel was asked.
    pub fn put_deferred_last(&mut self) {
        let is_deferred =
            |slot: &usize| self.entries.get(*slot).and_then(Option::as_ref).is_some_and(|entry| entry.deferred);
        if self.queue.iter().any(is_deferred) {
            self.queue.make_contiguous().sort_by_key(is_deferred);
        }
    }

    /// Takes entries out of the queue that have nothing to report.
    pub fn settle(&mut self) {
        for slot in core::mem::take(&mut self.queue) {
            let Some(entry) = self.entry_mut(slot) else { continue };
            entry.state.dequeue();
            if entry.has_something() {
                self.enqueue(slot);
            }
        }
    }

    /// Polls the busy-poll list, and enqueues what is ready. The others stay, for a while.
    pub fn look(&mut self, epoll: &Epoll) {
        self.review(|entry| {
            let keeps = entry.state.count(1) < IDLE_POLLS && entry.session.watched_only_by(epoll);
            if !keeps {
                entry.publish_waits();
            }
            (keeps, entry.is_ready())
        });
    }

    /// Arms the wakeup flags of the busy-poll list, and empties it.
    pub fn arm_all(&mut self) {
        self.review(|entry| {
            entry.publish_waits();
            (false, entry.is_ready())
        });
    }

    /// Asks for each entry of the busy-poll list whether it stays there, and whether it is ready.
    pub fn review(&mut self, judge: impl Fn(&mut Entry) -> (bool, bool)) {
        let mut i = 0;
        while let Some(&slot) = self.busy.get(i) {
            let (keeps, ready) = self.entry_mut(slot).map_or((false, false), &judge);
            if keeps && !ready {
                i += 1;
                continue;
            }
            self.busy.swap_remove(i);
            if let Some(entry) = self.entry_mut(slot) {
                entry.state.arm();
                entry.edge |= ready;
            }
            if ready {
                self.enqueue(slot);
            }
        }
    }

    /// Arms the wakeup flags of the busy-poll list before a sleep; false if there are octets already, or
    /// other work.
    pub fn fall_asleep(&mut self) -> bool {
        if !self.queue.is_empty() {
            return false;
        }
        for &slot in &self.busy {
            if let Some(entry) = self.entries.get_mut(slot).and_then(Option::as_mut) {
                entry.state.count(POLLS_OF_SLEEP);
            }
        }
        self.busy_rings().for_each(|rings| rings.receive().consumer_sleeps());
        !self.busy_entries().any(Entry::is_ready)
    }

    pub fn busy_entries(&self) -> impl Iterator<Item = &Entry> {
        self.busy.iter().filter_map(|&slot| self.entry(slot))
    }

    pub fn busy_rings(&self) -> impl Iterator<Item = Rings> + '_ {
        self.busy_entries().filter_map(|entry| entry.session.rings())
    }

    pub fn enqueue(&mut self, slot: usize) {
        if self.entry_mut(slot).is_some_and(|entry| entry.state.enqueue()) {
            self.queue.push_back(slot);
        }
    }

    /// Leaves an entry alone until the program enables it again.
    pub fn disable(&mut self, slot: usize) {
        let Some(entry) = self.entries.get_mut(slot).and_then(Option::as_mut) else { return };
        if entry.state.is_polled() {
            entry.publish_waits();
            self.busy.retain(|&polled| polled != slot);
        }
        entry.state.disable();
    }

    pub fn socket_event(&mut self, slot: usize, events: u32) {
        let Some(entry) = self.entry_mut(slot) else { return };
        entry.kernel |= entry.new_events(events);
        entry.edge = true;
        let in_ring = entry.has_event && entry.session.end().receive.phase() == Phase::Ring;
        if in_ring && events & READ_BITS != 0 && entry.session.end().shut.load(Ordering::Relaxed) == 0 {
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
            let Some(entry) = self.entry_mut(slot) else { continue };
            entry.edge |= entry.is_of_event() || entry.asks_again();
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
        let identity = Identity { role: Role::Connector, end: end::make().unwrap(), ends: None };
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

// SPDX-License-Identifier: Apache-2.0

//! The state of one end of a connection that processes share after fork: locks, own indices, counters.
//!
//! It is memory of this end alone, never mapped by the peer. A child of fork inherits the memory, and makes its
//! own for connections that begin after it.

use crate::conn::owners::Owners;
use crate::sys::lock::{self, Taken};
use crate::sys::{Lock, Mmap, Section};
use crate::telemetry::page;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Which part of the stream an end is at, for each direction.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
#[repr(u32)]
pub enum Phase {
    /// On the kernel's connection; the ring has not begun.
    Before = 0,
    Ring = 1,
    /// On the kernel's connection again, for good.
    After = 2,
}

/// It was not asked whether the socket has O_NONBLOCK.
pub const UNKNOWN: u32 = 2;

#[repr(C, align(64))]
#[derive(Default)]
pub struct End {
    pub receive: Direction,
    pub send: Direction,
    /// The socket has O_NONBLOCK, as far as this library saw it set; or UNKNOWN.
    pub nonblocking: AtomicU32,
    /// The processes that have descriptors of the socket.
    pub owners: Owners,
    /// The connection must not move to rings any more. SeqCst, with `upgrading` and the memory of the session: a thread
    /// that pins a connection sees that it is attached, or the one that attaches it sees that it is pinned.
    pub pinned: AtomicU32,
    /// Another program may send by the kernel's connection.
    /// SeqCst, with the index of the ring: whoever sees it also sees that nothing is left in the ring.
    pub left: AtomicU32,
    /// This end has asked for what is in the ring, and the peer has taken the question and not sent everything.
    pub recalled: AtomicU32,
    /// The connection's number in the page's list; 0 if it is not there.
    pub listed: AtomicU32,
    /// SO_RCVLOWAT: as many octets make this end readable. 0 and 1 are the same.
    pub low_mark: AtomicU32,
    /// How often a send of this end found no room, in the ring or in the kernel.
    pub room_waits: AtomicU32,
    /// shutdown(2) has ended receiving at this end.
    pub shut: AtomicU32,
    /// An error of the kernel's socket that was met before the ring was empty.
    pub error: AtomicI32,
    /// The connection was reset, by the kernel or because the peer was killed.
    pub reset: AtomicU32,
    /// The release of free() pairs with the exchange of make(): the former connection has left the place.
    used: AtomicU32,
    /// How often the place was taken. A child of fork that has counted its descriptor loads it: AcqRel orders both.
    pub generation: AtomicU64,
}

/// One direction, seen from this end.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Direction {
    pub lock: AtomicU32,
    /// Its release pairs with the acquire of phase(): what was sent or received before the change is counted.
    phase: AtomicU32,
    /// Octets that passed by the kernel before the ring.
    pub kernel: AtomicU64,
    /// This end's own index of the ring.
    pub index: AtomicU64,
    /// Of sending: the peer's index at the last send, when octets came into an empty ring, and when the kernel was
    /// asked whether the peer is there.
    pub head: AtomicU64,
    pub oldest: AtomicU64,
    pub asked: AtomicU64,
}

impl Direction {
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Before,
            1 => Phase::Ring,
            _ => Phase::After,
        }
    }

    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u32, Ordering::Release);
    }

    /// Runs `f` while no other thread or process of this end does the same. `f` gets whether the
    /// last one was killed while it did. None after `pauses`: the one that does it is stopped.
    pub fn with_lock<T>(&self, pauses: u32, f: impl FnOnce(bool) -> T) -> Option<T> {
        let _section = Section::enter();
        let taken = lock::take(&self.lock, pauses);
        if taken == Taken::Not {
            return None;
        }
        let result = f(taken == Taken::Stolen);
        lock::give(&self.lock);
        Some(result)
    }

    /// Makes the kernel carry the direction, also if the one that has the lock is stopped: when it goes on it finds the
    /// ring closed.
    pub fn leave(&self) {
        if self.with_lock(SHORT, |_| self.enter(Phase::After)).is_none() {
            self.enter(Phase::After);
        }
    }
}

/// Pauses of a call that can go on otherwise, about 0.2 s in all, and of one that has none, 2 s.
pub const SHORT: u32 = 200;
pub const LONG: u32 = 1900;

/// Places for ends. The kernel gives memory to those that are used.
const PLACES: usize = 16384;

/// Loads acquire what Mmap::publish has released.
static ARENA: AtomicPtr<End> = AtomicPtr::new(null_mut());
static SEARCH: Lock<Search> = Lock::new(Search::NEW);

/// At least as many places are used in turn: few enough for the cache of a CPU.
const FEWEST: usize = 64;

/// Where the next free place is looked for: behind the last one, among as many as are needed. So a process that has few
/// connections at a time uses little memory, and a place is not used again at once: a child that the parent did not see
/// may have it yet.
struct Search {
    next: usize,
    among: usize,
}

impl Search {
    const NEW: Self = Self { next: 0, among: FEWEST };

    /// Takes the growth of a search back, if so many of its places are free now.
    fn keep(&mut self, among: usize, freed: usize) {
        if freed >= among / 4 {
            *self = Self { next: 0, among };
        }
    }

    /// Takes the first place that `takes` does.
    fn find(&mut self, takes: impl Fn(usize) -> bool) -> Option<usize> {
        loop {
            let (first, among) = (self.next, self.among);
            let found = (0..among).map(|i| (i, (first + i) % among)).find(|&(_, place)| takes(place));
            if let Some((_, place)) = found {
                self.next = (place + 1) % among;
            }
            let is_crowded = found.is_none_or(|(looks, _)| looks > among / 2);
            if is_crowded && among < PLACES {
                (self.next, self.among) = (among, among * 2);
            }
            if found.is_some() || among == PLACES {
                return found.map(|(_, place)| place);
            }
        }
    }
}

/// Takes a free place for a socket of which this process has one descriptor; None if there is none. Places
/// whose processes have all ended are free, too, which costs system calls to find out.
pub fn make() -> Option<&'static End> {
    let arena = arena()?;
    // SAFETY: the arena has PLACES ends, and zeroed memory is a valid one.
    let end = |place: usize| -> &'static End { unsafe { &*arena.add(place) } };
    let used = |place| &end(place).used;
    let is_free = |place| {
        let used: &AtomicU32 = used(place);
        used.load(Ordering::Relaxed) == 0 && used.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let mut search = SEARCH.lock();
    let before = search.among;
    let found = search.find(is_free).or_else(|| search.find(|place| end(place).owners.end()));
    if search.among > before {
        // Many may be those of processes that were killed. The found one has no owner yet.
        let is_left = |&place: &usize| {
            Some(place) != found && used(place).load(Ordering::Relaxed) != 0 && end(place).owners.end()
        };
        let freed = (0..search.among).filter(is_left).inspect(|&place| end(place).free()).count();
        search.keep(before, freed);
    }
    let end = end(found?);
    end.reset();
    end.owners.add();
    Some(end)
}

/// Returns this process's memory for ends, shared with its children.
fn arena() -> Option<*mut End> {
    let found = ARENA.load(Ordering::Acquire);
    if !found.is_null() {
        return Some(found);
    }
    Some(Mmap::shared(PLACES * size_of::<End>()).ok()?.publish(&ARENA))
}

/// Lets the child make its own arena. Ends in the old one stay valid: it stays mapped.
pub fn after_fork() {
    ARENA.store(null_mut(), Ordering::Release);
    *SEARCH.lock() = Search::NEW;
}

impl End {
    /// Takes the place of a connection whose last known process has given it up, if nobody else has taken it.
    pub fn keep(&self, generation: u64) -> bool {
        self.owners.add();
        let _ = self.used.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        self.generation.load(Ordering::Acquire) == generation
    }

    fn reset(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        for direction in [&self.receive, &self.send] {
            direction.lock.store(0, Ordering::Relaxed);
            direction.enter(Phase::Before);
            direction.kernel.store(0, Ordering::Relaxed);
            for number in [&direction.index, &direction.head, &direction.oldest, &direction.asked] {
                number.store(0, Ordering::Relaxed);
            }
        }
        self.nonblocking.store(UNKNOWN, Ordering::Relaxed);
        self.owners.reset();
        self.pinned.store(0, Ordering::Relaxed);
        self.shut.store(0, Ordering::Relaxed);
        self.low_mark.store(0, Ordering::Relaxed);
        self.room_waits.store(0, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
        self.recalled.store(0, Ordering::Relaxed);
        self.unlist();
        self.error.store(0, Ordering::Relaxed);
        self.reset.store(0, Ordering::Relaxed);
    }

    /// Makes the page list where both directions are now.
    pub fn note(&self) {
        let (sends, receives) = (self.send.phase() as u8, self.receive.phase() as u8);
        page::note(self.listed.load(Ordering::Relaxed), sends, receives);
    }

    fn unlist(&self) {
        page::unlist(self.listed.swap(0, Ordering::Relaxed));
    }

    /// Frees the place. Whoever removed the last descriptor calls it.
    pub fn free(&self) {
        self.unlist();
        self.used.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;

    #[test]
    fn few_connections_at_a_time_use_few_places_and_none_at_once_again() {
        let mut search = Search::NEW;
        let places: Vec<_> = (0..500).map(|_| search.find(|_| true).unwrap()).collect();
        assert!(places.iter().all(|&place| place < FEWEST));
        for (i, place) in places.iter().enumerate().skip(FEWEST) {
            assert!(!places[i + 1 - FEWEST..i].contains(place), "place {place} was used again");
        }
    }

    #[test]
    fn connections_of_processes_that_were_killed_leave_no_place() {
        let in_killed_child = |end: &'static End| {
            end.owners.add_child();
            // SAFETY: the child does nothing but end.
            let child = unsafe { libc::fork() };
            if child == 0 {
                lock::own_process();
                end.owners.adopt();
                // SAFETY: the end of the child.
                unsafe { libc::_exit(0) }
            }
            assert!(!end.owners.remove(), "the child has one until it is waited for");
            // SAFETY: waits for the child.
            assert_eq!(unsafe { libc::waitpid(child, null_mut(), 0) }, child);
        };
        lock::own_process();
        let place = |end: &'static End| {
            let first = ARENA.load(Ordering::Relaxed).addr();
            (core::ptr::from_ref(end).addr() - first) / size_of::<End>()
        };
        let ends = (0..6 * FEWEST).map(|_| make().unwrap()).inspect(|end| in_killed_child(end));
        assert!(ends.map(place).max().unwrap() < FEWEST + 8, "about as few places as without kills");

        // Places of connections that have an owner are not taken for such.
        let mut ends: Vec<_> = (0..6 * FEWEST).map(|_| core::ptr::from_ref(make().unwrap())).collect();
        ends.sort_unstable();
        ends.dedup();
        assert_eq!(ends.len(), 6 * FEWEST, "each connection has a place of its own");
    }

    #[test]
    fn all_places_are_found() {
        let (mut search, used) = (Search::NEW, RefCell::new(vec![false; PLACES]));
        let looks = RefCell::new(0);
        let mut take = || {
            search.find(|place| {
                *looks.borrow_mut() += 1;
                !core::mem::replace(&mut used.borrow_mut()[place], true)
            })
        };
        (0..PLACES).for_each(|_| assert!(take().is_some()));
        assert_eq!(take(), None);
        used.borrow_mut()[77] = false;
        assert_eq!(take(), Some(77));
        assert!(*looks.borrow() < 6 * PLACES, "{} looks", looks.borrow());
    }
}

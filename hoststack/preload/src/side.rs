// SPDX-License-Identifier: Apache-2.0

//! The state of one end of a connection that processes share after fork: locks, own indices, counters.
//!
//! It is memory of this end alone, never mapped by the peer. A child of fork inherits the memory, and makes its
//! own for connections that begin after it.

use crate::lock::{self, Lock, Taken};
use crate::owners::Owners;
use crate::signals::Section;
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
pub struct Side {
    pub receive: Way,
    pub send: Way,
    /// The socket has O_NONBLOCK, as far as this library saw it set; or UNKNOWN.
    pub nonblocking: AtomicU32,
    /// The processes that have descriptors of the socket.
    pub owners: Owners,
    /// The connection must not move to rings any more.
    pub stays: AtomicU32,
    /// Another program may send by the kernel's connection.
    pub left: AtomicU32,
    /// This end has asked for what is in the ring, and the peer has taken the question and not sent everything.
    pub recalled: AtomicU32,
    /// The connection's number in the page's list; 0 if it is not there.
    pub listed: AtomicU32,
    /// SO_RCVLOWAT: as many octets make this end readable. 0 and 1 are the same.
    pub low_mark: AtomicU32,
    /// shutdown(2) has ended receiving at this end.
    pub shut: AtomicU32,
    /// An error of the kernel's socket that was met before the ring was empty.
    pub error: AtomicI32,
    /// The connection was reset, by the kernel or because the peer was killed.
    pub reset: AtomicU32,
    used: AtomicU32,
    /// How often the place was taken.
    pub generation: AtomicU64,
}

/// One direction, seen from this end.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Way {
    pub lock: AtomicU32,
    phase: AtomicU32,
    /// Octets that passed by the kernel before the ring.
    pub kernel: AtomicU64,
    /// This end's own index of the ring.
    pub index: AtomicU64,
    /// Of sending: the peer's index at the last send, when octets came into an empty ring, and when the kernel was asked
    /// whether the peer is there.
    pub head: AtomicU64,
    pub oldest: AtomicU64,
    pub asked: AtomicU64,
}

impl Way {
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

    /// with_lock runs `f` while no other thread or process of this end does the same. `f` is told whether the
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

    /// leave has the kernel carry the direction, also if the one that has the lock is stopped: when it goes on it finds the
    /// ring closed.
    pub fn leave(&self) {
        if self.with_lock(SHORT, |_| self.enter(Phase::After)).is_none() {
            self.enter(Phase::After);
        }
    }
}

/// Pauses of a call that has another way to go on, about 0.2 s in all, and of one that has none, 2 s.
pub const SHORT: u32 = 200;
pub const LONG: u32 = 1900;

/// Places for sides. The kernel gives memory to those that are used.
const PLACES: usize = 16384;

static ARENA: AtomicPtr<Side> = AtomicPtr::new(null_mut());
static HINT: Lock<usize> = Lock::new(0);

/// make takes a free place for a socket of which this process has one descriptor; None if there is none. Places
/// whose processes have all ended are free, too, which costs system calls to find out.
pub fn make() -> Option<&'static Side> {
    let arena = arena()?;
    let mut hint = HINT.lock();
    let all = || {
        (0..PLACES).map(|i| (*hint + i) % PLACES).map(|i| {
            // SAFETY: the arena has PLACES sides, and zeroed memory is a valid one.
            (i, unsafe { &*arena.add(i) })
        })
    };
    let free = |side: &Side| side.used.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let found = all().find(|(_, side)| free(side)).or_else(|| all().find(|(_, side)| side.owners.end()));
    let (i, side) = found?;
    *hint = i + 1;
    side.reset();
    side.owners.add();
    Some(side)
}

/// arena is this process's memory for sides, shared with its children.
fn arena() -> Option<*mut Side> {
    let found = ARENA.load(Ordering::Acquire);
    if !found.is_null() {
        return Some(found);
    }
    let length = PLACES * size_of::<Side>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let made = unsafe { libc::mmap(null_mut(), length, protection, flags, -1, 0) };
    if made == libc::MAP_FAILED {
        return None;
    }
    match ARENA.compare_exchange(null_mut(), made.cast(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(made.cast()),
        Err(other) => {
            // SAFETY: another thread was faster, so no one has a pointer into this mapping.
            unsafe { libc::munmap(made, length) };
            Some(other)
        }
    }
}

/// after_fork lets the child make its own arena. Sides in the old one stay valid: it stays mapped.
pub fn after_fork() {
    ARENA.store(null_mut(), Ordering::Release);
}

impl Side {
    /// keep takes the place of a connection whose last known process has given it up, if nobody else has taken it.
    pub fn keep(&self, generation: u64) -> bool {
        self.owners.add();
        let _ = self.used.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        self.generation.load(Ordering::Acquire) == generation
    }

    fn reset(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        for way in [&self.receive, &self.send] {
            way.lock.store(0, Ordering::Relaxed);
            way.enter(Phase::Before);
            way.kernel.store(0, Ordering::Relaxed);
            for number in [&way.index, &way.head, &way.oldest, &way.asked] {
                number.store(0, Ordering::Relaxed);
            }
        }
        self.nonblocking.store(UNKNOWN, Ordering::Relaxed);
        self.owners.reset();
        self.stays.store(0, Ordering::Relaxed);
        self.shut.store(0, Ordering::Relaxed);
        self.low_mark.store(0, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
        self.recalled.store(0, Ordering::Relaxed);
        crate::page::unlist(self);
        self.error.store(0, Ordering::Relaxed);
        self.reset.store(0, Ordering::Relaxed);
    }

    /// free is called by whoever removed the last descriptor.
    pub fn free(&self) {
        crate::page::unlist(self);
        self.used.store(0, Ordering::Release);
    }
}

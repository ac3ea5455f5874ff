// SPDX-License-Identifier: Apache-2.0

//! The indices of one direction: a byte stream from a producer to a consumer.
//!
//! The stream begins on the kernel's TCP connection, continues in the ring, and may return to the kernel:
//!
//! ```text
//! octets 0 .. start      kernel
//! start .. start + tail  ring
//! after that, if closed  kernel
//! ```
//!
//! Either end may close the ring at any time, without the other's help: `tail` has a bit for it, and the producer
//! publishes by compare-and-swap. So an end knows exactly which octets are in the ring when it is closed.

use crate::atomic::{fence, AtomicU32, AtomicU64, Ordering};

/// The bit of `tail` that closes the ring. The index is in the bits above.
const CLOSED: u64 = 1;

/// `start` until the producer has moved to the ring.
const UNKNOWN: u64 = u64::MAX;

/// Why a consumer is to be woken: a thread of it waits, whoever that is; and the one worker sleeps that otherwise looks
/// by itself. The latter is taken back when the worker is awake, the former is not.
const WAITS: u32 = 1;
const SLEEPS: u32 = 2;

/// The peer wrote an index that cannot be.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Violation;

/// What became of an attempt to publish octets.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Published {
    Done,
    /// The ring was closed before: the octets belong on the kernel's connection.
    Closed,
}

/// One direction. Each line belongs to one writer, so that the ends share none needlessly.
#[repr(C)]
pub struct Direction {
    produced: ProducerLine,
    consumed: ConsumerLine,
}

#[repr(C, align(64))]
struct ProducerLine {
    /// Octets sent by the kernel's connection before the first one of the ring.
    /// The release of begin() pairs with the acquire of start().
    start: AtomicU64,
    /// publish() and close() release, and available(), mark() and is_closed() acquire: the octets before the index are
    /// there. publish() also acquires close(): a recall was asked before.
    tail: AtomicU64,
    /// The producer found the ring full, and sleeps or may sleep. Its fence pairs with that of take().
    waits: AtomicU32,
    /// The octets in the ring follow others that the producer's program has sent by another connection of the kernel.
    /// `tail` orders it.
    behind: AtomicU32,
}

#[repr(C, align(64))]
struct ConsumerLine {
    /// The release of release() pairs with the acquire of free(): the octets before the index were copied.
    head: AtomicU64,
    /// The consumer found the ring empty, and sleeps or may sleep. Its fences pair with that of take().
    waits: AtomicU32,
}

impl Default for Direction {
    fn default() -> Self {
        Self {
            produced: ProducerLine {
                start: AtomicU64::new(UNKNOWN),
                tail: AtomicU64::new(0),
                waits: AtomicU32::new(0),
                behind: AtomicU32::new(0),
            },
            consumed: ConsumerLine { head: AtomicU64::new(0), waits: AtomicU32::new(0) },
        }
    }
}

impl Direction {
    /// Publishes that the ring follows after `sent` octets of the kernel's connection.
    pub fn begin(&self, sent: u64) {
        self.produced.start.store(sent, Ordering::Release);
    }

    /// Returns the number of octets before the ring, once the producer has begun.
    pub fn start(&self) -> Option<u64> {
        Some(self.produced.start.load(Ordering::Acquire)).filter(|&n| n != UNKNOWN)
    }

    /// Returns the room for a producer whose own index is `tail`.
    pub fn free(&self, tail: u64, capacity: u64) -> Result<u64, Violation> {
        let head = self.consumed.head.load(Ordering::Acquire);
        let used = tail.wrapping_sub(head);
        if used > capacity {
            return Err(Violation);
        }
        Ok(capacity - used)
    }

    /// Makes the octets between both indices visible to the consumer.
    pub fn publish(&self, from: u64, to: u64) -> Result<Published, Violation> {
        match self.produced.tail.compare_exchange(from << 1, to << 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Published::Done),
            Err(found) if found == (from << 1 | CLOSED) => Ok(Published::Closed),
            Err(_) => Err(Violation),
        }
    }

    /// Stores, before `publish` into an empty ring, whether the octets follow others that the program has sent by
    /// another connection of the kernel.
    pub fn set_behind(&self, behind: bool) {
        if self.is_behind() != behind {
            self.produced.behind.store(behind.into(), Ordering::Relaxed);
        }
    }

    /// Returns what set_behind has stored for the octets that are in the ring; false if the peer's library is of
    /// a version without it.
    pub fn is_behind(&self) -> bool {
        self.produced.behind.load(Ordering::Relaxed) != 0
    }

    /// Ends the ring for both sides: what is in it stays, what follows goes by the kernel.
    pub fn close(&self) {
        self.produced.tail.fetch_or(CLOSED, Ordering::AcqRel);
    }

    pub fn is_closed(&self) -> bool {
        self.produced.tail.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Returns the number of octets for a consumer whose own index is `head`, and whether the ring is closed.
    pub fn available(&self, head: u64, capacity: u64) -> Result<(u64, bool), Violation> {
        let word = self.produced.tail.load(Ordering::Acquire);
        let filled = (word >> 1).wrapping_sub(head);
        if filled > capacity {
            return Err(Violation);
        }
        Ok((filled, word & CLOSED != 0))
    }

    /// Changes whenever the producer publishes.
    pub fn mark(&self) -> u64 {
        self.produced.tail.load(Ordering::Acquire) >> 1
    }

    /// Gives the octets before `head` back to the producer.
    pub fn release(&self, head: u64) {
        self.consumed.head.store(head, Ordering::Release);
    }

    /// Publishes that the consumer may sleep. It has to check `available` afterwards.
    pub fn consumer_waits(&self) {
        self.consumed.waits.fetch_or(WAITS, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Like `consumer_waits`, for the only worker that looks without being woken while it is awake.
    pub fn consumer_sleeps(&self) {
        self.consumed.waits.fetch_or(SLEEPS, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes consumer_sleeps back.
    pub fn consumer_is_awake(&self) {
        if self.consumed.waits.load(Ordering::Relaxed) & SLEEPS != 0 {
            self.consumed.waits.fetch_and(!SLEEPS, Ordering::Relaxed);
        }
    }

    /// Returns, after `publish`, whether the consumer has to be woken: once for each wait.
    pub fn wake_consumer(&self) -> bool {
        take(&self.consumed.waits)
    }

    /// Publishes that the producer may sleep. It has to check `free` afterwards.
    pub fn producer_waits(&self) {
        self.produced.waits.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns, after `release`, whether the producer has to be woken.
    pub fn wake_producer(&self) -> bool {
        take(&self.produced.waits)
    }
}

/// Clears a flag that the other end sets before it sleeps. The fence orders the index before the flag:
/// either this end sees the flag, or the other one sees the index.
fn take(flag: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::AcqRel) != 0
}

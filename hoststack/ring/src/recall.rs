// SPDX-License-Identifier: Apache-2.0

//! How a consumer has the producer send by the kernel's connection what is in the ring and was not received.
//!
//! The consumer asks, and then closes the ring: a producer that finds it closed has seen the question. It answers
//! before it sends anything else by the kernel's connection, so the order stays.

use crate::atomic::{AtomicU64, Ordering};

const NONE: u64 = 0;
const ASKED: u64 = 1;
const TAKEN: u64 = 2;
/// The index is in the bits above.
const DONE: u64 = 3;
const BITS: u32 = 2;

/// The question for one direction, and its answer.
/// All accesses but a first look are SeqCst, as `tail` is changed between the question and its answer.
pub struct Recall(AtomicU64);

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Answer {
    /// Nobody has asked, or the producer has not seen it.
    None,
    /// The producer sends. How much it has sent is not known.
    Taken,
    /// The producer has sent the octets before this index, and sends no others that are in the ring.
    Done(u64),
}

impl Default for Recall {
    fn default() -> Self {
        Self(AtomicU64::new(NONE))
    }
}

impl Recall {
    /// Asks for the octets. The consumer calls it before it closes the ring.
    pub fn ask(&self) {
        self.0.store(ASKED, Ordering::SeqCst);
    }

    /// Takes the question back; false if the producer has taken it.
    pub fn withdraw(&self) -> bool {
        self.0.compare_exchange(ASKED, NONE, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub fn answer(&self) -> Answer {
        let word = self.0.load(Ordering::SeqCst);
        match word & DONE {
            TAKEN => Answer::Taken,
            DONE => Answer::Done(word >> BITS),
            _ => Answer::None,
        }
    }

    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ASKED
    }

    /// Makes the producer answer, if it was asked.
    pub fn take(&self) -> bool {
        self.is_asked() && self.0.compare_exchange(ASKED, TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Answers. The producer has taken the question.
    pub fn done(&self, index: u64) {
        self.0.store(index << BITS | DONE, Ordering::SeqCst);
    }
}

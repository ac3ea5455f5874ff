// SPDX-License-Identifier: Apache-2.0

//! What the kernel keeps for this library instead of a program's data.

use core::sync::atomic::{AtomicU32, Ordering};

/// The upper half of tags, drawn once. No address of a program begins with these bits, and no number of a descriptor.
static KEY: AtomicU32 = AtomicU32::new(0);

/// What the kernel keeps for this library instead of a program's data.
#[derive(Debug, PartialEq, Eq)]
pub enum Tag {
    Socket(Place),
    Event(Place),
    Wakeup,
}

/// The place of an entry, and which one of those that have had it: an event may come after its entry.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Place {
    pub slot: usize,
    pub generation: u32,
}

const SLOT_BITS: u32 = 22;
const GENERATION_BITS: u32 = 9;

impl Place {
    /// Returns the generation after one.
    pub fn next(generation: u32) -> u32 {
        (generation + 1) & ((1 << GENERATION_BITS) - 1)
    }

    fn pack(self) -> u64 {
        u64::from(self.generation) << SLOT_BITS | self.slot as u64
    }

    fn unpack(word: u64) -> Self {
        let slot = (word & ((1 << SLOT_BITS) - 1)) as usize;
        Self { slot, generation: (word >> SLOT_BITS) as u32 & ((1 << GENERATION_BITS) - 1) }
    }
}

const EVENT_BIT: u64 = 1 << (SLOT_BITS + GENERATION_BITS);
const WAKEUP: u64 = EVENT_BIT - 1;

fn key() -> u64 {
    let known = KEY.load(Ordering::Relaxed);
    if known != 0 {
        return u64::from(known) << 32;
    }
    let mut random = [0u8; 2];
    // SAFETY: two octets of this function's own.
    unsafe { libc::getrandom(random.as_mut_ptr().cast(), 2, libc::GRND_NONBLOCK) };
    let drawn = 0xbee1_0000 | u32::from(u16::from_ne_bytes(random));
    let _ = KEY.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed);
    u64::from(KEY.load(Ordering::Relaxed)) << 32
}

impl Tag {
    pub fn pack(&self) -> u64 {
        key()
            | match self {
                Tag::Socket(place) => place.pack(),
                Tag::Event(place) => EVENT_BIT | place.pack(),
                Tag::Wakeup => WAKEUP,
            }
    }

    pub fn unpack(data: u64) -> Option<Self> {
        if data >> 32 << 32 != key() {
            return None;
        }
        Some(match data & (2 * EVENT_BIT - 1) {
            WAKEUP => Tag::Wakeup,
            low if low & EVENT_BIT != 0 => Tag::Event(Place::unpack(low)),
            low => Tag::Socket(Place::unpack(low)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_unpacked_as_they_were_packed() {
        let last = Place { slot: (1 << SLOT_BITS) - 2, generation: (1 << GENERATION_BITS) - 1 };
        for place in [Place { slot: 0, generation: 0 }, Place { slot: 70_000, generation: 300 }, last] {
            assert_eq!(Tag::unpack(Tag::Socket(place).pack()), Some(Tag::Socket(place)));
            assert_eq!(Tag::unpack(Tag::Event(place).pack()), Some(Tag::Event(place)));
        }
        assert_eq!(Tag::unpack(Tag::Wakeup.pack()), Some(Tag::Wakeup));
        assert_eq!(Tag::unpack(7), None, "data of a program");
    }
}

// SPDX-License-Identifier: Apache-2.0

//! What the kernel keeps for this library instead of a program's data.

use core::sync::atomic::{AtomicU32, Ordering};

/// The upper half of tags, drawn once. No address of a program begins with these bits, and no number of a descriptor.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Tag is what the kernel keeps for this library instead of a program's data.
pub enum Tag {
    Socket(usize),
    Event(usize),
    Nudge,
}

const EVENT_BIT: u64 = 1 << 31;
const NUDGE: u64 = EVENT_BIT - 1;

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
                Tag::Socket(slot) => *slot as u64,
                Tag::Event(slot) => EVENT_BIT | *slot as u64,
                Tag::Nudge => NUDGE,
            }
    }

    pub fn unpack(data: u64) -> Option<Self> {
        if data >> 32 << 32 != key() {
            return None;
        }
        let slot = (data & (EVENT_BIT - 1)) as usize;
        Some(match data & (2 * EVENT_BIT - 1) {
            NUDGE => Tag::Nudge,
            low if low & EVENT_BIT != 0 => Tag::Event(slot),
            _ => Tag::Socket(slot),
        })
    }
}

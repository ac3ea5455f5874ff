// SPDX-License-Identifier: Apache-2.0

//! A peer that writes anything into the shared indices: an end accepts only what fits its own index.
#![cfg(not(loom))]

use beeline_ring::{Direction, Header, Layout};

/// Xorshift64 of Marsaglia, with bits and small numbers as likely as large ones.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> (self.0 % 64)
    }
}

/// Stores a word anywhere in a direction.
fn overwrite(direction: &Direction, draw: &mut Draw) {
    let words = size_of::<Direction>() / 8;
    let at = std::ptr::from_ref(direction).cast::<std::sync::atomic::AtomicU64>();
    // SAFETY: the word is inside of the direction, whose words are all atomic or padding.
    let word = unsafe { &*at.add(draw.next() as usize % words) };
    word.store(draw.next().wrapping_sub(draw.next() % 3), std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn what_an_end_uses_is_never_more_than_the_ring() {
    const CAPACITY: u64 = 4096;
    let mut draw = Draw(0x6265_656c_696e_6501);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..200_000 {
        let direction = Direction::default();
        let index = draw.next() >> 1;
        for _ in 0..1 + draw.next() % 4 {
            overwrite(&direction, &mut draw);
        }
        for checked in [direction.free(index, CAPACITY), direction.available(index, CAPACITY).map(|(n, _)| n)] {
            match checked {
                Ok(n) => {
                    assert!(n <= CAPACITY, "{n} octets in a ring of {CAPACITY}");
                    accepted += 1;
                }
                Err(_) => refused += 1,
            }
        }
        // Whatever the peer wrote, these must return.
        let _ = direction.publish(index, index.wrapping_add(1) & (u64::MAX >> 1));
        direction.close();
        direction.wake_consumer();
        direction.wake_producer();
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused: the draw is one-sided");
}

#[test]
fn a_header_of_any_words_gives_a_ring_inside_of_its_memory() {
    let mut draw = Draw(0x6265_656c_696e_6502);
    // SAFETY: a header begins with four words.
    let good: [u32; 4] = unsafe { std::ptr::from_ref(&Header::new(65536)).cast::<[u32; 4]>().read() };
    let mut accepted = 0;
    for _ in 0..200_000 {
        let mut words = good;
        words[draw.next() as usize % 4] = draw.next() as u32;
        let length = Layout::bytes(1 << (draw.next() % 24)) + (draw.next() % 2) as usize;
        if let Some(layout) = Layout::check(words, length) {
            assert_eq!(Layout::bytes(layout.capacity), length);
            accepted += 1;
        }
    }
    assert!(accepted > 0, "nothing was accepted, not even a good header");
}

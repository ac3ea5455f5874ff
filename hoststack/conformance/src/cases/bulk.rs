// SPDX-License-Identifier: Apache-2.0

//! Many octets: nothing is lost, changed or out of order, also where the ring follows the kernel's connection.

use crate::sys::*;
use libc::c_int;

/// The octets of one direction: each end computes them for itself.
pub struct Sequence(u64);

impl Sequence {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a generator of Marsaglia's (xorshift64).
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

pub fn produce(fd: c_int, total: usize, seed: u64) {
    let (mut octets, mut lengths) = (Sequence(seed), Sequence(seed + 1));
    let mut left = total;
    while left > 0 {
        let n = left.min(1 + lengths.next() as usize % 150_000);
        let block: Vec<u8> = (0..n).map(|_| octets.next() as u8).collect();
        assert_eq!(send(fd, &block, 0), n as isize, "a blocking send is complete");
        left -= n;
    }
}

/// Produces by one call, or as few as a socket without blocking takes.
pub fn produce_at_once(fd: c_int, total: usize, seed: u64) {
    let mut octets = Sequence(seed);
    let block: Vec<u8> = (0..total).map(|_| octets.next() as u8).collect();
    let mut sent = 0;
    while sent < total {
        match send(fd, &block[sent..], 0) {
            -1 => assert_eq!(poll(fd, libc::POLLOUT, 5000), "1 OUT"),
            n => sent += n as usize,
        }
    }
}

/// Returns the number of octets up to the first wrong one.
pub fn consume(fd: c_int, total: usize, seed: u64) -> usize {
    let (mut octets, mut lengths) = (Sequence(seed), Sequence(seed + 2));
    let mut buffer = vec![0u8; 150_000];
    let mut seen = 0;
    while seen < total {
        let most = 1 + lengths.next() as usize % buffer.len();
        // SAFETY: the buffer has at least that many octets.
        let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), most.min(total - seen), 0) };
        if n <= 0 {
            return seen;
        }
        for &octet in &buffer[..n as usize] {
            if octet != octets.next() as u8 {
                return seen;
            }
            seen += 1;
        }
    }
    seen
}

pub fn both_directions() {
    const TOTAL: usize = 8 << 20;
    let p = fresh();
    std::thread::scope(|scope| {
        scope.spawn(|| produce(p.connector, TOTAL, 11));
        scope.spawn(|| produce(p.acceptor, TOTAL, 22));
        let other = scope.spawn(|| consume(p.connector, TOTAL, 22));
        note("to the acceptor", consume(p.acceptor, TOTAL, 11));
        note("to the connector", other.join().unwrap());
    });
    p.close();
}

/// Messages of several writers may mix, but each arrives whole in number.
pub fn many_writers() {
    let p = pair();
    const EACH: usize = 3000;
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            scope.spawn(move || (0..EACH).for_each(|_| assert_eq!(send(p.connector, &[writer; 100], 0), 100)));
        }
        let mut counts = [0usize; 4];
        let mut buffer = [0u8; 4096];
        while counts.iter().sum::<usize>() < 4 * EACH * 100 {
            // SAFETY: the buffer has that many octets.
            let n = unsafe { libc::recv(p.acceptor, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            buffer[..n as usize].iter().for_each(|&octet| counts[octet as usize] += 1);
        }
        note("octets of each", format!("{counts:?}"));
    });
    p.close();
}

// SPDX-License-Identifier: Apache-2.0

//! A peer that writes anything into the shared memory. Its own connection suffers, the program does not.

use crate::sys::*;
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT};

/// Both ends of the connection are in this process, so the memory is found among its mappings.
pub fn overwritten_header() {
    let mut draw = 0x6265_656c_696e_6503u64;
    let mut next = move || {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        draw >> (draw % 64)
    };
    let e = epoll();
    for _ in 0..300 {
        let p = pair();
        add(e, p.acceptor, libc::EPOLLIN | libc::EPOLLOUT, 1);
        for _ in 0..1 + next() % 3 {
            for header in mappings() {
                // SAFETY: a word of the header's page, which is mapped for writing.
                unsafe { (header as *mut u64).add(next() as usize % 64).write_volatile(next()) };
            }
            for fd in [p.acceptor, p.connector] {
                send(fd, &[b'x'; 3000], MSG_DONTWAIT | MSG_NOSIGNAL);
                recv(fd, 5000, MSG_DONTWAIT);
                poll(fd, POLLIN | POLLOUT, 0);
                wait(e, 8, 0);
            }
        }
        p.close();
    }
    close(e);
    let p = pair();
    send(p.connector, b"alive", 0);
    note("another connection", recv(p.acceptor, 9, 0));
    p.close();
}

/// mappings are the addresses of rings in this process.
pub fn mappings() -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let rings = maps.lines().filter(|line| line.contains("memfd:beeline-ring"));
    rings.filter_map(|line| usize::from_str_radix(line.split('-').next()?, 16).ok()).collect()
}

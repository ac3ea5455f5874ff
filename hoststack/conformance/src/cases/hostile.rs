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

/// The place of the flag by which the acceptor asks to be woken for octets.
const WISH: usize = 264;

/// The wake-up for octets that an edge has reported comes after them. It has taken the wish to be woken, which has to
/// be made again. Here it is taken by the case itself, since that is a matter of nanoseconds.
pub fn wake_up_after_its_octets() {
    let (p, e) = (pair(), epoll());
    add(e, p.acceptor, libc::EPOLLIN | libc::EPOLLET, 1);
    send(p.connector, b"first", 0);
    note("first", wait(e, 8, 1000));
    note("recv", recv(p.acceptor, 20, 0));
    (0..100).for_each(|_| drop(wait(e, 8, 0)));
    for header in mappings() {
        // SAFETY: a word of the header's page, which is mapped for writing.
        unsafe { ((header + WISH) as *mut u32).write_volatile(0) };
    }
    wake_all();
    note("nothing", wait(e, 8, 0));
    send(p.connector, b"second", 0);
    note("second", wait(e, 8, 1000));
    close(e);
    p.close();
}

/// Makes all events of this process readable.
fn wake_all() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is this function's.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    // The library's own have numbers from half of the limit on.
    let first = (limit.rlim_cur.min(1 << 19) / 2) as i32;
    for fd in first..first + 1000 {
        let Ok(target) = std::fs::read_link(format!("/proc/self/fd/{fd}")) else { continue };
        if target.to_string_lossy() == "anon_inode:[eventfd]" {
            let one = 1u64;
            // SAFETY: eight octets, by a call that the library does not see, since the descriptor is its own.
            unsafe { enter(libc::SYS_write, [fd as usize, std::ptr::from_ref(&one) as usize, 8]) };
        }
    }
}

/// Returns the addresses of rings in this process.
pub fn mappings() -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let rings = maps.lines().filter(|line| line.contains("memfd:beeline-ring"));
    rings.filter_map(|line| usize::from_str_radix(line.split('-').next()?, 16).ok()).collect()
}

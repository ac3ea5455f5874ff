// SPDX-License-Identifier: Apache-2.0

//! Connections in a sockmap, as those of the sidecar shortcut are: the kernel's FIONREAD need not count what they have.

use crate::sys::*;
use libc::{c_int, c_long, EPOLLET, EPOLLIN, MSG_DONTWAIT};
use std::mem::zeroed;

/// Of linux/bpf.h.
const MAP_CREATE: c_long = 0;
const MAP_UPDATE_ELEM: c_long = 2;
const PROG_LOAD: c_long = 5;
const PROG_ATTACH: c_long = 8;
const MAP_TYPE_SOCKMAP: u64 = 15;
const PROG_TYPE_SK_MSG: u64 = 16;
const SK_MSG_VERDICT: u32 = 7;
const F_INGRESS: i32 = 1;
const MSG_REDIRECT_MAP: i32 = 60;
const LOCAL_PORT: i16 = 64;

/// Calls bpf(2) with the beginning of its attributes.
fn bpf(command: c_long, attributes: &[u64]) -> c_int {
    let mut all = [0u64; 16];
    all[..attributes.len()].copy_from_slice(attributes);
    // SAFETY: the attributes, and what they lead to, live as long as the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, all.as_ptr(), size_of_val(&all)) };
    assert!(result >= 0, "bpf {command}: {}", name(errno()));
    result as c_int
}

const fn pair_of(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

fn address<T>(of: &T) -> u64 {
    std::ptr::from_ref(of) as u64
}

/// Returns an instruction of BPF, as the kernel has it.
const fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    code as u64 | (to as u64) << 8 | (from as u64) << 12 | (offset as u16 as u64) << 16 | (value as u32 as u64) << 32
}

/// A sockmap of both ends of a connection.
struct Sockmap {
    map: c_int,
    program: c_int,
}

impl Sockmap {
    /// Adds both ends. With `skips` what they send goes to the queue of the other one, past TCP.
    fn join(p: Pair, skips: bool) -> Self {
        let map = bpf(MAP_CREATE, &[MAP_TYPE_SOCKMAP | 4 << 32, pair_of(4, 2)]);
        let program = if skips { Self::redirect(map, p) } else { -1 };
        for (key, fd) in [(0u32, p.connector), (1, p.acceptor)] {
            bpf(MAP_UPDATE_ELEM, &[map as u64, address(&key), address(&fd), 0]);
        }
        Self { map, program }
    }

    fn redirect(map: c_int, p: Pair) -> c_int {
        let code = [
            instruction(0x61, 2, 1, LOCAL_PORT, 0),        // r2 = message->local_port
            instruction(0xb7, 3, 0, 0, 1),                 // r3 = 1
            instruction(0x15, 2, 0, 1, port(p.connector)), // if r2 == the connector's: skip one
            instruction(0xb7, 3, 0, 0, 0),                 // r3 = 0
            instruction(0x18, 2, 1, 0, map),               // r2 = map
            0,
            instruction(0xb7, 4, 0, 0, F_INGRESS), // r4 = to the queue that is received from
            instruction(0x85, 0, 0, 0, MSG_REDIRECT_MAP),
            instruction(0x95, 0, 0, 0, 0),
        ];
        let license = c"Dual BSD/GPL";
        let program = bpf(
            PROG_LOAD,
            &[PROG_TYPE_SK_MSG | (code.len() as u64) << 32, code.as_ptr() as u64, license.as_ptr() as u64],
        );
        bpf(PROG_ATTACH, &[pair_of(map as u32, program as u32), SK_MSG_VERDICT.into()]);
        program
    }

    fn close(self) {
        close(self.map);
        if self.program >= 0 {
            close(self.program);
        }
    }
}

fn port(fd: c_int) -> c_int {
    // SAFETY: zero is a valid sockaddr_in, which has room for an address of IPv4.
    let address = unsafe {
        let mut address: libc::sockaddr_in = zeroed();
        let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        libc::getsockname(fd, std::ptr::from_mut(&mut address).cast(), &mut length);
        address
    };
    u16::from_be(address.sin_port).into()
}

/// Receives after each edge until a read gets less than it asked for, as nginx does, and returns how much came.
fn by_edges(e: c_int, fd: c_int, total: usize, fill: u8) -> usize {
    let (mut seen, mut buffer) = (0, vec![0u8; 1 << 17]);
    while seen < total && wait(e, 8, 3000) == "1 [1=IN]" {
        loop {
            // SAFETY: the buffer has that many octets.
            let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), MSG_DONTWAIT) };
            let Ok(n) = usize::try_from(n) else { break };
            assert!(buffer[..n].iter().all(|&octet| octet == fill), "octets of another message");
            seen += n;
            if n < buffer.len() {
                break;
            }
        }
    }
    seen
}

/// Messages of several sizes in both directions, while the connection moves to rings.
fn exchanged(skips: bool) {
    let (p, connector, acceptor) = (fresh(), epoll(), epoll());
    let map = Sockmap::join(p, skips);
    add(connector, p.connector, EPOLLIN | EPOLLET, 1);
    add(acceptor, p.acceptor, EPOLLIN | EPOLLET, 1);
    for (round, &size) in [1, 1000, 64 << 10, 7, 200_000].iter().cycle().take(40).enumerate() {
        let message = vec![round as u8; size];
        for (from, e, to) in [(p.connector, acceptor, p.acceptor), (p.acceptor, connector, p.connector)] {
            let sends = std::thread::spawn({
                let message = message.clone();
                move || send(from, &message, 0)
            });
            note("received", by_edges(e, to, size, round as u8));
            note("sent", sends.join().unwrap());
        }
    }
    p.close();
    [connector, acceptor].into_iter().for_each(close);
    map.close();
}

pub fn in_a_sockmap() {
    exchanged(false);
}

pub fn past_tcp() {
    exchanged(true);
}

/// The acceptor has made an offer, and the connector, which looks for one at times only, goes on by the kernel.
pub fn offered_in_a_sockmap() {
    for skips in [false, true] {
        let p = fresh();
        let map = Sockmap::join(p, skips);
        let e = epoll();
        for _ in 0..10 {
            send(p.connector, b"w", 0);
        }
        for _ in 0..10 {
            assert_eq!(recv(p.acceptor, 1, 0), "1 w");
        }
        add(e, p.acceptor, EPOLLIN | EPOLLET, 1);
        for size in [4, 60_000] {
            note("sent", send(p.connector, &vec![b'k'; size], 0));
            note("received", by_edges(e, p.acceptor, size, b'k'));
        }
        note("nothing more", recv(p.acceptor, 100, MSG_DONTWAIT));
        for _ in 0..16 {
            send(p.connector, b"w", 0);
            assert_eq!(recv(p.acceptor, 1, 0), "1 w");
        }
        p.close();
        close(e);
        map.close();
    }
}

/// What the kernel has before the ring, in whichever queue, is received with what the ring has.
pub fn ring_after_sockmap() {
    for skips in [false, true] {
        let p = fresh();
        let map = Sockmap::join(p, skips);
        send(p.acceptor, b"by the kernel, ", 0);
        for _ in 0..32 {
            send(p.connector, b"w", 0);
            assert_eq!(recv(p.acceptor, 1, 0), "1 w");
        }
        let e = epoll();
        add(e, p.connector, EPOLLIN | EPOLLET, 1);
        send(p.acceptor, b"then", 0);
        note("edge", wait(e, 8, 1000));
        let mut all = recv(p.connector, 100, MSG_DONTWAIT);
        // A queue of messages gives no more than what is in it; the rest comes with another edge.
        while !all.ends_with("then") && wait(e, 8, 1000) == "1 [1=IN]" {
            all += &recv(p.connector, 100, MSG_DONTWAIT);
        }
        note("in order", all.replace(|c: char| c.is_ascii_digit(), "").replace("  ", " "));
        p.close();
        close(e);
        map.close();
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Calls of random programs that send and receive.

use super::world::*;
use crate::sys::*;
use libc::{c_int, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};
use std::sync::atomic::Ordering;

/// Returns a length: small, middling or large.
fn length(number: u32) -> usize {
    let most = [4, 200, 4000][number as usize % 3];
    (number / 3) as usize % (most + 1)
}

/// Returns two parts of a buffer.
fn halves(octets: &mut [u8]) -> Vec<libc::iovec> {
    let (first, second) = octets.split_at_mut(octets.len() / 2);
    parts(&mut [first, second])
}

/// Sends by one of the calls that do.
pub fn send_any(world: &mut World, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "send: nothing is open".into() };
    let count = length(b);
    let Some(mut octets) = world.octets(slot, count) else { return "send: too many are under way".into() };
    let flags = if c / 8 % 2 == 0 { MSG_NOSIGNAL } else { MSG_NOSIGNAL | MSG_DONTWAIT };
    let place = octets.as_mut_ptr();
    let mut list = halves(&mut octets);
    let mut message = message(&mut list);
    // SAFETY: the octets live as long as the calls.
    let (name, n) = unsafe {
        match c % 8 {
            0 => ("write", libc::write(slot.fd, place.cast(), count)),
            1 => ("writev", libc::writev(slot.fd, message.msg_iov, 2)),
            2 => ("sendmsg", libc::sendmsg(slot.fd, &message, flags)),
            3 => ("sendmmsg", sendmmsg(slot.fd, &mut message, flags)),
            4 => ("sendto", libc::sendto(slot.fd, place.cast(), count, flags, std::ptr::null(), 0)),
            _ => ("send", libc::send(slot.fd, place.cast(), count, flags)),
        }
    };
    let waits = if flags & MSG_DONTWAIT == 0 { "" } else { ", DONTWAIT" };
    format!("{name}({}, {count}{waits}): {}", World::name(i, slot), world.sent(slot, n))
}

/// Sends one message as a list, and returns its length.
unsafe fn sendmmsg(fd: c_int, message: &mut libc::msghdr, flags: c_int) -> isize {
    let mut one = libc::mmsghdr { msg_hdr: *message, msg_len: 0 };
    // SAFETY: one message, of the caller.
    match unsafe { libc::sendmmsg(fd, &mut one, 1, flags as _) } {
        1 => one.msg_len as isize,
        other => other as isize,
    }
}

/// Combinations for calls that receive.
const FLAGS: [(c_int, &str); 8] = [
    (0, ""),
    (0, ""),
    (MSG_DONTWAIT, ", DONTWAIT"),
    (MSG_PEEK, ", PEEK"),
    (MSG_PEEK | MSG_DONTWAIT, ", PEEK|DONTWAIT"),
    (MSG_WAITALL, ", WAITALL"),
    (MSG_WAITALL, ", WAITALL"),
    (MSG_TRUNC, ", TRUNC"),
];

/// Receives by one of the calls that do.
pub fn recv_any(world: &mut World, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "recv: nothing is open".into() };
    let count = length(b);
    let mut octets = vec![0u8; count];
    let place = octets.as_mut_ptr();
    let mut list = halves(&mut octets);
    let mut message = message(&mut list);
    let plain = c % 8 < 2;
    let (flags, flag_names) = if plain { FLAGS[0] } else { FLAGS[c as usize / 8 % FLAGS.len()] };
    // SAFETY: the buffer has that many octets.
    let (name, n) = unsafe {
        match c % 8 {
            0 => ("read", libc::read(slot.fd, place.cast(), count)),
            1 => ("readv", libc::readv(slot.fd, message.msg_iov, 2)),
            2 => ("recvmsg", libc::recvmsg(slot.fd, &mut message, flags)),
            3 => ("recvmmsg", recvmmsg(slot.fd, &mut message, flags)),
            4 => ("recvfrom", recvfrom(slot.fd, &mut octets, flags)),
            _ => ("recv", libc::recv(slot.fd, place.cast(), count, flags)),
        }
    };
    let result = world.received(slot, n, &octets, flags & MSG_PEEK == 0);
    format!("{name}({}, {count}{flag_names}): {result}", World::name(i, slot))
}

/// Receives one message as a list, and returns its length.
unsafe fn recvmmsg(fd: c_int, message: &mut libc::msghdr, flags: c_int) -> isize {
    let mut one = libc::mmsghdr { msg_hdr: *message, msg_len: 0 };
    // SAFETY: one message, of the caller, and no time limit.
    match unsafe { libc::recvmmsg(fd, &mut one, 1, flags as _, std::ptr::null_mut()) } {
        1 => one.msg_len as isize,
        other => other as isize,
    }
}

/// Asks for the sender's address, which a stream does not have.
fn recvfrom(fd: c_int, octets: &mut [u8], flags: c_int) -> isize {
    // SAFETY: zero is a valid address.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let place = std::ptr::from_mut(&mut address).cast();
    // SAFETY: the buffer and the address have these lengths.
    unsafe { libc::recvfrom(fd, octets.as_mut_ptr().cast(), octets.len(), flags, place, &mut length) }
}

pub fn sendfile(world: &mut World, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "sendfile: nothing is open".into() };
    let count = length(b);
    if world.octets(slot, count).is_none() {
        return "sendfile: too many are under way".into();
    }
    let mut offset = i64::from(c % 100_100);
    // SAFETY: a file and an offset.
    let n = unsafe { libc::sendfile(slot.fd, world.file, &mut offset, count) };
    format!("sendfile({}, {}, {count}): {} {offset}", World::name(i, slot), c % 100_100, world.sent(slot, n))
}

/// Sends what it puts into the pipe before.
pub fn splice_in(world: &mut World, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "splice_in: nothing is open".into() };
    let count = length(b).max(1);
    let Some(octets) = world.octets(slot, count) else { return "splice_in: too many are under way".into() };
    let flags = if c % 2 == 0 { 0 } else { libc::SPLICE_F_NONBLOCK };
    let none = std::ptr::null_mut();
    // SAFETY: the octets live as long as the call, which the pipe has room for.
    let n = unsafe {
        assert_eq!(libc::write(world.pipe[1], octets.as_ptr().cast(), count), count as isize);
        libc::splice(world.pipe[0], none, slot.fd, none, count, flags)
    };
    let result = world.sent(slot, n);
    let mut rest = vec![0u8; count];
    // SAFETY: the buffer has that many octets.
    let left = unsafe { libc::read(world.pipe[0], rest.as_mut_ptr().cast(), count) };
    format!("splice(pipe, {}, {count}): {result}, {} left", World::name(i, slot), left.max(0))
}

/// Receives until the number of octets has come or no more are there. How many one call moves depends on the
/// kernel's buffers.
pub fn splice_out(world: &mut World, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "splice_out: nothing is open".into() };
    let wanted = length(b).max(1);
    let flags = if c % 2 == 0 { 0 } else { libc::SPLICE_F_NONBLOCK };
    let none = std::ptr::null_mut();
    let mut all = Vec::new();
    let mut end = String::from("complete");
    while all.len() < wanted {
        // SAFETY: a socket and a pipe.
        let n = unsafe { libc::splice(slot.fd, none, world.pipe[1], none, wanted - all.len(), flags) };
        if n <= 0 {
            end = outcome(n);
            break;
        }
        let mut octets = vec![0u8; n as usize];
        // SAFETY: the buffer has that many octets.
        assert_eq!(unsafe { libc::read(world.pipe[0], octets.as_mut_ptr().cast(), octets.len()) }, n);
        all.extend(octets);
    }
    let result = world.received(slot, all.len() as isize, &all, true);
    format!("splice({}, pipe, {wanted}): {result}, {end}", World::name(i, slot))
}

/// Sends until no more goes, and receives all at the other end.
pub fn fill(world: &mut World, [a, ..]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "fill: nothing is open".into() };
    let name = World::name(i, slot);
    let Some((_, peer)) = world.peer(slot) else { return format!("fill({name}): has no peer") };
    let total = world.sending(slot);
    if total.shut.load(Ordering::Relaxed) == 1 {
        return format!("fill({name}): the peer receives no more");
    }
    let before = total.sent.load(Ordering::Relaxed);
    let mut n = 1;
    while n > 0 {
        let octets = vec![b'f'; 50_000];
        n = send(slot.fd, &octets, MSG_DONTWAIT | MSG_NOSIGNAL);
        total.sent.fetch_add(n.max(0) as u64, Ordering::Relaxed);
    }
    let end = outcome(n);
    let full = poll(slot.fd, libc::POLLOUT, 0);
    let drained = drain(world, peer);
    // How much that was depends on the buffers; what is sent next must not.
    total.sent.store(before, Ordering::Relaxed);
    total.received.store(before, Ordering::Relaxed);
    format!("fill({name}): {end}, poll {full}; {drained}, poll {}", poll(slot.fd, libc::POLLOUT, 1000))
}

/// Receives what is under way.
fn drain(world: &World, peer: Slot) -> String {
    let total = world.receiving(peer);
    let mut buffer = vec![0u8; 100_000];
    loop {
        let left = total.sent.load(Ordering::Relaxed).saturating_sub(total.received.load(Ordering::Relaxed));
        if left == 0 {
            return "all received".into();
        }
        poll(peer.fd, libc::POLLIN, 1000);
        // SAFETY: the buffer has that many octets.
        let n = unsafe { libc::recv(peer.fd, buffer.as_mut_ptr().cast(), buffer.len(), MSG_DONTWAIT) };
        if n <= 0 {
            return format!("receives {}", outcome(n));
        }
        total.received.fetch_add(n as u64, Ordering::Relaxed);
    }
}

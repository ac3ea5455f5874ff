// SPDX-License-Identifier: Apache-2.0

//! Steps of random programs that take a second thread or process.

use super::world::*;
use crate::sys::*;
use libc::{c_int, POLLIN};
use std::time::Duration;

/// A call that another thread ends waits for as many milliseconds at most.
const LONGEST: c_int = 1500;

/// Waits in a call until another thread has acted on the other end.
pub fn woken(world: &mut World, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "woken: nothing is open".into() };
    let name = World::name(i, slot);
    let Some((j, peer)) = world.peer(slot) else { return format!("woken({name}): has no peer") };
    let Some(octets) = world.octets(peer, 10) else { return "woken: too many are under way".into() };
    let act = b % 8;
    if act == 7 {
        world.slots[j] = None;
    }
    limit(slot.fd, LONGEST);
    let (did, got) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(10));
            act_on(peer, act, &octets)
        });
        let got = wait_by(world, slot, c);
        (other.join().expect("a thread"), got)
    });
    limit(slot.fd, READ_TIMEOUT);
    if act == 5 || act == 6 {
        std::thread::sleep(ACKNOWLEDGED);
    }
    if act < 5 {
        world.sent(peer, did.parse().unwrap_or(0));
    }
    format!(
        "woken({name}), {} by {}: {did}; {got}",
        World::name(j, peer),
        ["send", "shutdown", "close"][act.max(5) as usize - 5]
    )
}

fn act_on(peer: Slot, act: u32, octets: &[u8]) -> String {
    match act {
        0..=4 => outcome(send(peer.fd, octets, libc::MSG_NOSIGNAL)),
        // SAFETY: shutdown and close of a descriptor.
        5 | 6 => outcome(unsafe { libc::shutdown(peer.fd, libc::SHUT_WR) } as isize),
        // SAFETY: as above.
        _ => outcome(unsafe { libc::close(peer.fd) } as isize),
    }
}

/// Waits for something to receive. What is there before is no reason to return too early.
fn wait_by(world: &World, slot: Slot, how: u32) -> String {
    let mut octets = [0u8; 100];
    let flags = if how.is_multiple_of(5) { libc::MSG_WAITALL } else { 0 };
    match how % 5 {
        0 | 1 => {
            // SAFETY: the buffer has that many octets.
            let n = unsafe { libc::recv(slot.fd, octets.as_mut_ptr().cast(), octets.len(), flags) };
            std::thread::sleep(Duration::from_millis(if n > 0 { 20 } else { 0 }));
            format!("recv {}", world.received(slot, n, &octets, true))
        }
        2 => format!("poll {}", poll(slot.fd, POLLIN, LONGEST)),
        how => {
            let instance = epoll();
            let events = if how == 3 { libc::EPOLLIN | libc::EPOLLET } else { libc::EPOLLIN };
            add(instance, slot.fd, events, 1);
            let result = wait(instance, 4, LONGEST);
            close(instance);
            format!("epoll_wait {result}")
        }
    }
}

/// Makes the next steps run in a child, while this process waits.
pub fn fork(world: &mut World, [a, b, _]: [u32; 3]) -> String {
    world.child = Some((1 + a as usize % 5, b % 2 == 1));
    format!("fork, {}", if b % 2 == 1 { "killed" } else { "exits" })
}

/// Makes the next steps run in a child, which alone has one end of a connection then.
pub fn give(world: &mut World, numbers: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(numbers[2]) else { return "give: nothing is open".into() };
    world.given = Some((slot.connection, slot.end));
    format!("give({}), {}", World::name(i, slot), fork(world, numbers))
}

/// Runs `steps` in a child, if a step has asked for one, and returns how many.
pub fn children(world: &mut World, run: impl Fn(&mut World, usize)) -> usize {
    let Some((count, is_killed)) = world.child.take() else { return 0 };
    let given = world.given.take();
    let mut gate = [0; 2];
    // SAFETY: an array of two.
    assert_eq!(unsafe { libc::pipe(gate.as_mut_ptr()) }, 0);
    let child = in_child(|| {
        close(gate[1]);
        world.is_child = true;
        // The child begins when its parent has closed what it gives away.
        let mut octet = [0u8];
        // SAFETY: one octet.
        unsafe { libc::read(gate[0], octet.as_mut_ptr().cast(), 1) };
        close(gate[0]);
        (0..count).for_each(|i| run(world, i));
        if is_killed {
            // SAFETY: the end of this child.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    });
    let gone = |slot: &Slot| given == Some((slot.connection, slot.end));
    for slot in world.slots.iter_mut().filter(|slot| slot.as_ref().is_some_and(gone)) {
        close(slot.take().expect("is open").fd);
    }
    gate.into_iter().for_each(close);
    note("child", end_of(child));
    count
}

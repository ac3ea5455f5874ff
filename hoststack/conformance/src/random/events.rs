// SPDX-License-Identifier: Apache-2.0

//! Calls of random programs that ask what descriptors are ready for.

use super::world::*;
use crate::sys::*;
use libc::{c_int, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, POLLIN, POLLOUT, POLLRDHUP};

/// Returns a time limit, mostly 0, which does not wait.
fn timeout(number: u32) -> c_int {
    if number.is_multiple_of(4) {
        READ_TIMEOUT
    } else {
        0
    }
}

fn wanted(number: u32) -> i16 {
    [POLLIN, POLLOUT, POLLIN | POLLOUT, POLLIN | POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP, 0][number as usize % 6]
}

pub fn poll_one(world: &mut World, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "poll: nothing is open".into() };
    let result = poll(slot.fd, wanted(b), timeout(c));
    format!("poll({}, {}): {result}", World::name(i, slot), bits(wanted(b) as u32))
}

pub fn poll_all(world: &mut World, [a, b, _]: [u32; 3]) -> String {
    let open: Vec<(usize, Slot)> = (0..SLOTS).filter_map(|i| Some((i, world.slots[i]?))).collect();
    let events = wanted(b);
    let mut fds: Vec<_> = open.iter().map(|(_, slot)| libc::pollfd { fd: slot.fd, events, revents: 0 }).collect();
    // SAFETY: the list has that many descriptors.
    let n = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, timeout(a)) };
    let each: Vec<String> = open
        .iter()
        .zip(&fds)
        .map(|(&(i, slot), one)| format!("{}={}", World::name(i, slot), bits(one.revents as u32)))
        .collect();
    format!("poll(all, {}): {} [{}]", bits(events as u32), outcome(n as isize), each.join(" "))
}

pub fn select(world: &mut World, [a, b, _]: [u32; 3]) -> String {
    let open: Vec<(usize, Slot)> = (0..SLOTS).filter_map(|i| Some((i, world.slots[i]?))).collect();
    // SAFETY: zero is an empty set.
    let mut sets: [libc::fd_set; 2] = unsafe { std::mem::zeroed() };
    let asked = [a % 4 != 1, a % 4 != 2];
    for (set, _) in sets.iter_mut().zip(asked).filter(|(_, asked)| *asked) {
        // SAFETY: descriptors are small numbers.
        open.iter().for_each(|(_, slot)| unsafe { libc::FD_SET(slot.fd, set) });
    }
    let mut time = libc::timeval { tv_sec: 0, tv_usec: i64::from(timeout(b)) * 1000 };
    let [read, write] = &mut sets;
    // SAFETY: two sets and a time limit.
    let n = unsafe { libc::select(1000, read, write, std::ptr::null_mut(), &mut time) };
    let left = |set: &libc::fd_set| {
        // SAFETY: descriptors are small numbers.
        let has = |slot: &Slot| unsafe { libc::FD_ISSET(slot.fd, set) };
        let names: Vec<String> =
            open.iter().filter(|(_, slot)| has(slot)).map(|&(i, slot)| World::name(i, slot)).collect();
        names.join(" ")
    };
    format!("select({asked:?}): {} [{}] [{}]", outcome(n as isize), left(read), left(write))
}

/// Returns what an epoll instance is asked for.
fn interest(number: u32) -> c_int {
    let ready = [EPOLLIN, EPOLLIN | EPOLLOUT, EPOLLOUT, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLOUT | EPOLLRDHUP];
    let how = [0, 0, EPOLLET, EPOLLET, EPOLLONESHOT];
    ready[number as usize % 5] | how[number as usize / 5 % 5]
}

fn described(events: c_int) -> String {
    let how = match events & (EPOLLET | EPOLLONESHOT) {
        0 => "",
        EPOLLET => "+ET",
        _ => "+ONESHOT",
    };
    format!("{}{how}", bits(events as u32))
}

/// An instance that a child shares with its parent is an exception (docs/develop/hoststack.md).
const NOT_HERE: &str = "epoll: not in a child";

/// Calls epoll_ctl(2). The data of an entry are its slot.
fn change(world: &mut World, operation: c_int, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "epoll_ctl: nothing is open".into() };
    if world.is_child {
        return NOT_HERE.into();
    }
    let name = ["", "ADD", "DEL", "MOD"][operation as usize];
    world.registered[i] = true;
    let (instance, events) = (b as usize % 2, interest(c));
    let result = control(world.epolls[instance], operation, slot.fd, events, i as u64);
    format!("epoll_ctl({instance}, {name}, {}, {}): {result}", World::name(i, slot), described(events))
}

pub fn add(world: &mut World, numbers: [u32; 3]) -> String {
    change(world, libc::EPOLL_CTL_ADD, numbers)
}

pub fn modify(world: &mut World, numbers: [u32; 3]) -> String {
    change(world, libc::EPOLL_CTL_MOD, numbers)
}

pub fn remove(world: &mut World, numbers: [u32; 3]) -> String {
    change(world, libc::EPOLL_CTL_DEL, numbers)
}

pub fn wait_any(world: &mut World, [a, b, _]: [u32; 3]) -> String {
    if world.is_child {
        return NOT_HERE.into();
    }
    let instance = a as usize % 2;
    format!("epoll_wait({instance}): {}", wait(world.epolls[instance], 20, timeout(b)))
}

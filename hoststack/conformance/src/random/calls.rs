// SPDX-License-Identifier: Apache-2.0

//! The calls of random programs. Each describes itself and its result in a line.

use super::world::*;
use super::{events, processes, transfers};
use crate::sys::*;
use libc::c_int;
use std::sync::atomic::Ordering;

pub type Run = fn(&mut World, [u32; 3]) -> String;

pub struct Call {
    pub name: &'static str,
    /// How often it is drawn, relative to others. 0: its differences are known, and not ended yet.
    pub weight: u64,
    pub run: Run,
}

macro_rules! calls {
    ($($name:ident $weight:literal $run:path;)*) => {
        pub const CALLS: &[Call] = &[$(Call { name: stringify!($name), weight: $weight, run: $run },)*];
    };
}

calls! {
    open 1 open;
    send 14 transfers::send_any;
    recv 14 transfers::recv_any;
    sendfile 2 transfers::sendfile;
    splice_in 2 transfers::splice_in;
    splice_out 2 transfers::splice_out;
    fill 1 transfers::fill;
    queued 3 queued;
    poll 6 events::poll_one;
    poll_all 3 events::poll_all;
    select 3 events::select;
    add 5 events::add;
    modify 3 events::modify;
    remove 2 events::remove;
    wait 9 events::wait_any;
    option 4 option;
    nonblocking 3 nonblocking;
    dup 3 dup;
    shutdown 2 shutdown;
    close 3 close_slot;
    woken 4 processes::woken;
    fork 2 processes::fork;
    give 0 processes::give;
}

fn open(world: &mut World, [a, b, _]: [u32; 3]) -> String {
    let (connection, warm) = (a as usize % 2, b % 2 == 1);
    world.open(connection, warm);
    format!("open({connection}, {})", if warm { "used" } else { "new" })
}

fn queued(world: &mut World, [a, ..]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "queued: nothing is open".into() };
    let mut count: c_int = -1;
    // SAFETY: FIONREAD stores a number.
    let result = outcome(unsafe { libc::ioctl(slot.fd, libc::FIONREAD, &mut count) } as isize);
    format!("FIONREAD({}): {result} {count}", World::name(i, slot))
}

fn option(world: &mut World, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "option: nothing is open".into() };
    let name = World::name(i, slot);
    match b % 4 {
        0 => {
            let most = 1 + c % 3000;
            set_option(slot.fd, libc::SO_RCVLOWAT, most as c_int);
            format!("SO_RCVLOWAT({name}, {most})")
        }
        1 => {
            set_option(slot.fd, libc::SO_RCVLOWAT, 1 as c_int);
            format!("SO_RCVLOWAT({name}, 1)")
        }
        2 => {
            let on = (c % 2) as c_int;
            set_option(slot.fd, libc::SO_LINGER, libc::linger { l_onoff: on, l_linger: 0 });
            format!("SO_LINGER({name}, {on})")
        }
        _ => format!("SO_ERROR({name}): {}", socket_error(slot.fd)),
    }
}

fn nonblocking(world: &mut World, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "nonblocking: nothing is open".into() };
    let on = b % 2 == 1;
    if c % 2 == 0 {
        set_nonblocking(slot.fd, on);
    } else {
        let mut value = c_int::from(on);
        // SAFETY: FIONBIO takes a number.
        unsafe { libc::ioctl(slot.fd, libc::FIONBIO, &mut value) };
    }
    // SAFETY: fcntl of a descriptor.
    let flags = unsafe { libc::fcntl(slot.fd, libc::F_GETFL) };
    format!("nonblocking({}, {on}): {}", World::name(i, slot), flags & libc::O_NONBLOCK != 0)
}

/// Copies a descriptor into a slot of copies, onto the number of the former one if there is one.
fn dup(world: &mut World, [a, b, c]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "dup: nothing is open".into() };
    let place = 4 + b as usize % (SLOTS - 4);
    let before = world.slots[place].filter(|_| !world.registered[place]);
    if world.slots[place].is_some() && before.is_none() {
        return "dup: the other one is in an instance".into();
    }
    // SAFETY: copies of a descriptor.
    let fd = unsafe {
        match (before, c % 2) {
            (Some(old), 0) => libc::dup2(slot.fd, old.fd),
            (Some(old), _) if old.fd != slot.fd => libc::dup3(slot.fd, old.fd, libc::O_CLOEXEC),
            (Some(_), _) => slot.fd,
            (None, 0) => libc::dup(slot.fd),
            (None, _) => libc::fcntl(slot.fd, libc::F_DUPFD_CLOEXEC, 3),
        }
    };
    let over = before.map_or(String::new(), |old| format!(" over {}", World::name(place, old)));
    world.slots[place] = Some(Slot { fd, ..slot });
    format!("dup({}, '{}{over}): {}", World::name(i, slot), place - 3, outcome((fd.min(0)) as isize))
}

fn shutdown(world: &mut World, [a, b, _]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "shutdown: nothing is open".into() };
    let how = (b % 4).min(2) as c_int;
    let how = if how == libc::SHUT_RD && b % 8 < 4 { libc::SHUT_WR } else { how };
    // SAFETY: shutdown of a descriptor.
    let result = outcome(unsafe { libc::shutdown(slot.fd, how) } as isize);
    if how != libc::SHUT_WR {
        world.receiving(slot).shut.store(1, Ordering::Relaxed);
    }
    std::thread::sleep(ACKNOWLEDGED);
    format!("shutdown({}, {}): {result}", World::name(i, slot), ["RD", "WR", "RDWR"][how as usize])
}

fn close_slot(world: &mut World, [a, ..]: [u32; 3]) -> String {
    let Some((i, slot)) = world.slot(a) else { return "close: nothing is open".into() };
    let name = World::name(i, slot);
    let is_same = |other: &Slot| (other.connection, other.end) == (slot.connection, slot.end);
    if world.registered[i] && world.slots.iter().flatten().filter(|other| is_same(other)).count() > 1 {
        // The copies stay in the instance, and may report another edge.
        return format!("close({name}): is in an instance and has copies");
    }
    world.registered[i] = false;
    world.slots[i] = None;
    // SAFETY: closing a number is harmless to memory.
    let result = outcome(unsafe { libc::close(slot.fd) } as isize);
    format!("close({name}): {result}")
}

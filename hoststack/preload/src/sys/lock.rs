// SPDX-License-Identifier: Apache-2.0

//! A lock that survives fork: a child breaks those that other threads of its parent held.

use crate::sys::errno::{self, ESRCH};
use crate::sys::Section;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

/// The process that this memory belongs to; the child handler of fork changes it.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Stores the number of this process. It is called at start and in each child of fork.
pub fn own_process() {
    // SAFETY: getpid has no preconditions.
    OWNER.store(unsafe { libc::getpid() } as u32, Ordering::Relaxed);
}

/// Returns the number of the process that own_process saw.
pub fn process() -> u32 {
    OWNER.load(Ordering::Relaxed)
}

/// What became of a wait for a lock.
#[derive(PartialEq, Eq, Clone, Copy)]
pub enum Taken {
    Free,
    /// Its holder has ended, or is a thread that a child of fork does not have.
    Stolen,
    /// Its holder does not go on.
    Not,
}

/// Tries without a sleep, and then a pause for each: first short ones, since most holders go on at once.
const BRIEF: u32 = 64;
const SHORT_PAUSES: u32 = 20;
const SHORT_PAUSE: i64 = 100_000;
const LONG_PAUSE: i64 = 1_000_000;

/// Waits for `word` to be 0 and stores this process's number in it, for `pauses` at most. A holder that has ended
/// loses the lock. One that is stopped, or that a thread of a higher priority keeps from running, needs the CPU.
#[inline]
pub fn take(word: &AtomicU32, pauses: u32) -> Taken {
    match word.compare_exchange(0, process(), Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Taken::Free,
        Err(_) => wait(word, pauses),
    }
}

#[cold]
fn wait(word: &AtomicU32, pauses: u32) -> Taken {
    let (mut tries, mut taken) = (0u32, Taken::Free);
    while let Err(holder) = word.compare_exchange(0, process(), Ordering::Acquire, Ordering::Relaxed) {
        tries += 1;
        if tries < BRIEF {
            // SAFETY: sched_yield has no preconditions.
            unsafe { libc::sched_yield() };
            continue;
        }
        if tries - BRIEF > pauses {
            return Taken::Not;
        }
        sleep(if tries - BRIEF < SHORT_PAUSES { SHORT_PAUSE } else { LONG_PAUSE });
        if tries % 4 == 0 && holder != 0 && has_ended(holder) {
            let free = word.compare_exchange(holder, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            taken = if free { Taken::Stolen } else { taken };
        }
    }
    taken
}

/// Lets others run, also those of a lower priority.
pub fn pause() {
    sleep(SHORT_PAUSE);
}

fn sleep(nanoseconds: i64) {
    crate::sys::uncancelled::pause(nanoseconds);
}

/// Returns whether there is no such process. One whose parent has not waited for it is there.
pub fn has_ended(process: u32) -> bool {
    // SAFETY: signal 0 only checks that the process exists.
    unsafe { libc::kill(process as i32, 0) != 0 && errno::last() == ESRCH }
}

/// Its release pairs with the acquire of take(): the next holder sees what this one did.
pub fn give(word: &AtomicU32) {
    word.store(0, Ordering::Release);
}

/// Guards memory of one process. Held for a few instructions, never across a system call that blocks.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the word lets one thread at a time reach the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        self.break_after_fork();
        let section = Section::enter();
        take(&self.word, u32::MAX - BRIEF);
        Guard(self, section)
    }

    /// Frees a lock that a thread of the parent held when it forked.
    fn break_after_fork(&self) {
        let holder = self.word.load(Ordering::Relaxed);
        if holder != 0 && holder != process() {
            let _ = self.word.compare_exchange(holder, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Ends the section after the lock.
pub struct Guard<'a, T>(&'a Lock<T>, #[allow(dead_code)] Section);

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        give(&self.0.word);
    }
}

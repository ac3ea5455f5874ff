// SPDX-License-Identifier: Apache-2.0

//! The processes that have descriptors of one end of a connection, in memory that they share. One that has ended
//! has none, though it did not close them.

use crate::sys::lock::{has_ended, process};
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// Processes that are distinguished. Of further ones only the number of descriptors is known, so their end without
/// closing is not noticed.
const PLACES: usize = 8;

/// All accesses are SeqCst: processes that remove their last descriptors at the same time agree on who was the last.
#[derive(Default)]
pub struct Owners {
    /// A process in the upper half, the number of its descriptors in the lower.
    places: [AtomicU64; PLACES],
    /// Descriptors of children that fork is making, and of processes without a place.
    others: AtomicU32,
    /// Somebody has learnt that none is left.
    ended: AtomicU32,
}

fn place(process: u32, count: u32) -> u64 {
    match count {
        0 => 0,
        _ => u64::from(process) << 32 | u64::from(count),
    }
}

fn owner(place: u64) -> u32 {
    (place >> 32) as u32
}

impl Owners {
    pub fn reset(&self) {
        // Of a place that nobody else has.
        self.places.iter().for_each(|p| p.store(0, Relaxed));
        self.others.store(0, Relaxed);
        self.ended.store(0, SeqCst);
    }

    /// Counts a descriptor of this process.
    pub fn add(&self) {
        if self.ended.load(SeqCst) != 0 {
            self.ended.store(0, SeqCst);
        }
        let counted = self.change(|count| count.checked_add(1)) || self.begin();
        if !counted {
            self.others.fetch_add(1, SeqCst);
        }
    }

    /// Counts a descriptor of the child that fork is about to make. In the child, adopt has it be the
    /// child's.
    pub fn add_child(&self) {
        self.others.fetch_add(1, SeqCst);
    }

    pub fn adopt(&self) {
        if self.others.load(SeqCst) == 0 {
            return;
        }
        // The descriptor is counted twice for a moment, never not at all: the parent may close its own now.
        self.add();
        if !self.drop_other() {
            self.change(|count| count.checked_sub(1));
        }
    }

    /// Takes add_child back: the child was not made.
    pub fn drop_child(&self) {
        self.drop_other();
    }

    /// Counts one descriptor of this process less. Returns whether no process has any more, to one caller
    /// only.
    pub fn remove(&self) -> bool {
        let _ = self.change(|count| count.checked_sub(1)) || self.drop_other();
        self.end()
    }

    /// Returns whether no other process has descriptors.
    pub fn is_alone(&self) -> bool {
        let of_none = |place| owner(place) == process() || vacant(place);
        self.others.load(SeqCst) == 0 && self.places.iter().all(|p| of_none(p.load(SeqCst)))
    }

    /// Returns whether no process has descriptors, to one caller only.
    pub fn end(&self) -> bool {
        self.are_gone() && self.ended.swap(1, SeqCst) == 0
    }

    fn are_gone(&self) -> bool {
        self.others.load(SeqCst) == 0 && self.places.iter().all(|p| vacant(p.load(SeqCst)))
    }

    /// Replaces the count of this process; false if it has none.
    fn change(&self, next: impl Fn(u32) -> Option<u32>) -> bool {
        let own = |value| (owner(value) == process()).then(|| next(value as u32)).flatten();
        let update = |value| own(value).map(|count| place(process(), count));
        self.places.iter().any(|p| p.fetch_update(SeqCst, SeqCst, update).is_ok())
    }

    /// Gives this process a place with one descriptor; false if there is none.
    fn begin(&self) -> bool {
        let update = |value| vacant(value).then(|| place(process(), 1));
        self.places.iter().any(|p| p.fetch_update(SeqCst, SeqCst, update).is_ok())
    }

    fn drop_other(&self) -> bool {
        self.others.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok()
    }
}

/// Returns whether a place has no process, or one that has ended.
fn vacant(place: u64) -> bool {
    place == 0 || has_ended(owner(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::lock::own_process;
    use crate::sys::mmap::Mmap;

    /// Returns memory that children of this process share.
    fn shared() -> &'static Owners {
        let made = Mmap::shared(size_of::<Owners>()).unwrap().into_raw();
        // SAFETY: a new mapping, zeroed, is a valid Owners.
        unsafe { &*made.cast::<Owners>() }
    }

    /// Forks as the library does, and waits for the end of the child.
    fn in_child(owners: &Owners, descriptors: u32, f: impl FnOnce()) {
        (0..descriptors).for_each(|_| owners.add_child());
        // SAFETY: the child does nothing but f.
        let child = unsafe { libc::fork() };
        if child == 0 {
            own_process();
            (0..descriptors).for_each(|_| owners.adopt());
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
            // SAFETY: the end of the child.
            unsafe { libc::_exit(failed.into()) }
        }
        let mut status = 0;
        // SAFETY: waits for the child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "an assertion of the child has failed");
    }

    #[test]
    fn the_last_descriptor_is_known() {
        own_process();
        for children in [0, 1, PLACES - 1, 3 * PLACES] {
            let owners = shared();
            owners.add();
            owners.add();
            (0..children).for_each(|_| in_child(owners, 2, || ())); // which end without closing
            assert!(!owners.remove(), "the parent has another one");
            assert!(owners.remove(), "children that have ended have none ({children})");
            assert!(!owners.end(), "one caller is interest");
        }
    }

    #[test]
    fn a_process_is_alone_when_the_others_have_closed_or_ended() {
        own_process();
        let owners = shared();
        owners.add();
        assert!(owners.is_alone());
        in_child(owners, 1, || assert!(!owners.is_alone(), "the parent has one"));
        assert!(owners.is_alone(), "the child has ended");
        owners.add_child();
        assert!(!owners.is_alone(), "a child is being made");
        owners.adopt();
        in_child(owners, 1, || {
            let parent = owners.places.iter().find(|p| owner(p.load(SeqCst)) != process()).unwrap();
            parent.store(0, SeqCst);
            assert!(owners.is_alone(), "the parent has closed its own");
        });
    }

    #[test]
    fn a_child_that_adopts_while_its_parent_closes_has_the_descriptor() {
        own_process();
        for attempt in 0..500 {
            let owners = shared();
            owners.add();
            owners.add_child();
            // SAFETY: the child does nothing but adopt.
            let child = unsafe { libc::fork() };
            if child == 0 {
                own_process();
                owners.adopt();
                // SAFETY: the end of the child.
                unsafe { libc::_exit(0) }
            }
            while owners.others.load(SeqCst) != 0 {
                core::hint::spin_loop();
            }
            assert!(!owners.remove(), "the child has one until it is waited for (attempt {attempt})");
            // SAFETY: waits for the child.
            assert_eq!(unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) }, child);
            assert!(owners.end(), "the child has ended");
            // SAFETY: nobody uses the mapping any more.
            drop(unsafe { Mmap::from_raw(core::ptr::from_ref(owners).cast_mut().cast(), size_of::<Owners>()) });
        }
    }

    #[test]
    fn a_child_outlives_its_parent() {
        own_process();
        let owners = shared();
        owners.add();
        in_child(owners, 1, || {
            // The parent's is removed by the child, as if the parent had ended.
            let parent = owners.places.iter().find(|p| owner(p.load(SeqCst)) != process()).unwrap();
            parent.store(0, SeqCst);
            owners.add();
            assert!(!owners.remove());
            assert!(owners.remove());
        });
        assert!(!owners.end(), "the child was interest");
    }
}

// SPDX-License-Identifier: Apache-2.0

//! New processes. A copy of the memory is a fork, by whatever call: the kernel wipes a page of it (MADV_WIPEONFORK). A
//! child that shares the memory is one of vfork(2): the table is its parent's.

use crate::conn::end;
use crate::fdtable::descriptors;
use crate::sys::{diag, lock, real, signals, Mmap};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use libc::c_int;

/// What the mark is where the kernel does not know MADV_WIPEONFORK: then only fork(3) is seen.
static UNWIPED: AtomicU32 = AtomicU32::new(1);

/// 1 in the process that has stored it, 0 in a copy.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(&raw const UNWIPED as *mut AtomicU32);

/// The parent has counted the descriptors of the child that is being made.
static COUNTED: AtomicBool = AtomicBool::new(false);

/// The memory has a process beside this one that is no thread of it: no connection goes on rings.
/// SeqCst: only the first such child has the connections leave their rings.
static SHARED: AtomicBool = AtomicBool::new(false);

const PAGE: usize = 65536; // the largest page of aarch64

/// Runs before the program's main function.
pub fn start() {
    lock::own_process();
    let Ok(made) = Mmap::private(PAGE) else { return };
    // SAFETY: advice for this function's own mapping.
    if unsafe { libc::madvise(made.as_ptr().cast(), PAGE, libc::MADV_WIPEONFORK) } == 0 {
        MARK.store(made.into_raw().cast(), Ordering::Relaxed);
        mark().store(1, Ordering::Relaxed);
    }
}

fn mark() -> &'static AtomicU32 {
    // SAFETY: a static, or a page that stays mapped.
    unsafe { &*MARK.load(Ordering::Relaxed) }
}

/// Makes a copy of the memory become a process of its own. Each call that looks at the table begins with it.
#[inline]
pub fn notice() {
    if mark().load(Ordering::Relaxed) == 0 {
        in_child();
    }
}

/// Runs in the parent, before it makes a copy.
pub extern "C" fn before() {
    descriptors::before_fork();
    COUNTED.store(true, Ordering::Relaxed);
}

/// Runs in the parent when it has made a copy.
pub extern "C" fn in_parent() {
    COUNTED.store(false, Ordering::Relaxed);
}

/// Like `in_parent`, if there is no copy.
fn failed() {
    in_parent();
    descriptors::fork_failed();
}

/// Runs in a copy, once.
#[cold]
pub extern "C" fn in_child() {
    // SAFETY: getpid and getppid have no preconditions.
    let (own, parent) = unsafe { (libc::getpid() as u32, libc::getppid() as u32) };
    if mark().load(Ordering::Relaxed) != 0 && own == lock::process() {
        return;
    }
    mark().store(1, Ordering::Relaxed);
    // The descriptors are those of a child of vfork(2), which may have changed them.
    let borrowed = parent != lock::process();
    lock::own_process();
    end::after_fork();
    diag::after_fork();
    descriptors::after_fork(COUNTED.swap(false, Ordering::Relaxed), borrowed);
}

/// Runs a system call like clone(2), which returns in both processes.
pub fn make(flags: u64, call: impl FnOnce() -> isize) -> isize {
    if flags & libc::CLONE_VM as u64 != 0 {
        shares(flags);
        return call();
    }
    before();
    let result = call();
    match result {
        0 => in_child(),
        -1 => failed(),
        _ => in_parent(),
    }
    result
}

/// Has to be called before the memory is shared with a child. One for which its parent does not wait may have other
/// descriptors by the same numbers at the same time. One with thread-local storage of its own could not be
/// distinguished.
pub fn shares(flags: u64) {
    let has = |flag: c_int| flags & flag as u64 != 0;
    if has(libc::CLONE_THREAD) {
        return;
    }
    signals::set_twin(true);
    let is_harmless = has(libc::CLONE_VFORK) && !has(libc::CLONE_SETTLS);
    if !is_harmless && !SHARED.swap(true, Ordering::SeqCst) {
        descriptors::leave_all();
    }
}

/// Prepares vfork(2), and returns the C library's.
extern "C" fn before_vfork() -> usize {
    signals::set_twin(true);
    real::vfork()
}

/// The C library's function returns twice to its caller, on the same stack. So this one has none when it goes there.
macro_rules! vfork {
    ($name:ident) => {
        /// # Safety
        /// As for vfork(2).
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() -> c_int {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!("sub rsp, 8", "call {before}", "add rsp, 8", "jmp rax", before = sym before_vfork);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-16]!", "bl {before}", "ldp x29, x30, [sp], #16", "mov x16, x0", "br x16",
                before = sym before_vfork
            );
        }
    };
}

vfork!(vfork);
vfork!(__vfork);

/// Returns whether the memory has another process that is no thread of this one.
pub fn is_shared() -> bool {
    SHARED.load(Ordering::Relaxed)
}

/// Returns whether this is another process in the same memory: it must not change tables. Only a thread that
/// has made one has to ask the kernel.
pub fn in_vfork_child() -> bool {
    notice();
    let is_shared = is_shared();
    if !is_shared && !signals::may_be_twin() {
        return false;
    }
    // SAFETY: getpid has no preconditions.
    let is_child = unsafe { libc::getpid() as u32 != lock::process() };
    if !is_child && !is_shared {
        // vfork(2) has returned in the parent: the child has ended, or runs another program.
        signals::set_twin(false);
    }
    is_child
}

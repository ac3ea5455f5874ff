// SPDX-License-Identifier: Apache-2.0

//! Handlers of signals run between the parts of a call that hold a lock, never inside of one.
//!
//! A thread counts the sections that it is in. A handler of the program that would interrupt one is put off: the signal
//! is queued again for the thread, and blocked until the outermost section ends, where the kernel delivers it. A
//! section makes no call that waits. Without a signal it costs a few instructions at both ends, and no system call.

use crate::sys::syscall::direct;
use crate::sys::{errno, real};
use core::mem::{transmute, zeroed};
use core::ptr::{null, null_mut};
use core::sync::atomic::{compiler_fence, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use libc::{c_int, siginfo_t, ucontext_t};

/// What a thread has of its own: in static thread-local storage, which a library that is there at the start may use.
#[repr(C)]
struct Area {
    depth: AtomicU32,
    pending: AtomicU32,
    /// The signal mask of the code that was interrupted first.
    mask: AtomicU64,
    /// It has made a child that shares the memory, and this area: which of both runs is to be asked.
    has_twin: AtomicU32,
}

core::arch::global_asm!(
    ".pushsection .tbss,\"awT\",%nobits",
    ".balign 16",
    ".globl beeline_hoststack_area",
    ".hidden beeline_hoststack_area",
    ".type beeline_hoststack_area,%tls_object",
    ".size beeline_hoststack_area,24",
    "beeline_hoststack_area:",
    ".zero 24",
    ".popsection",
);

/// Returns the area of this thread, of all zeroes at first.
#[inline]
fn area() -> &'static Area {
    let at: *const Area;
    // SAFETY: the address of a thread-local symbol, as the ABI's initial-exec model has it.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("mov {0}, qword ptr fs:[0]", "add {0}, qword ptr [rip + beeline_hoststack_area@GOTTPOFF]",
            out(reg) at, options(nostack, readonly));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("mrs {0}, tpidr_el0", "adrp {1}, :gottprel:beeline_hoststack_area",
            "ldr {1}, [{1}, :gottprel_lo12:beeline_hoststack_area]", "add {0}, {0}, {1}",
            out(reg) at, out(reg) _, options(nostack, readonly));
        &*at
    }
}

/// Notes that this thread is about to make a child that shares its memory, or that it is not in one.
pub fn set_twin(has_twin: bool) {
    area().has_twin.store(u32::from(has_twin), Ordering::Relaxed);
}

/// Returns whether this may be another process than the one whose thread has this area.
pub fn may_be_twin() -> bool {
    area().has_twin.load(Ordering::Relaxed) != 0
}

/// Puts handlers off while it lives. Only its own thread and handlers on that thread use the area, so that plain
/// loads and stores are enough: a handler that runs leaves the depth as it found it. The compiler's fences keep
/// accesses to what a lock guards inside.
pub struct Section(());

impl Section {
    #[inline]
    pub fn enter() -> Self {
        let depth = &area().depth;
        depth.store(depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let area = area();
        let depth = area.depth.load(Ordering::Relaxed) - 1;
        area.depth.store(depth, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if area.pending.load(Ordering::Relaxed) != 0 && depth == 0 {
            deliver(area);
        }
    }
}

/// Restores the mask of signals, which has the kernel run the handlers that were put off.
#[cold]
fn deliver(area: &Area) {
    area.pending.store(0, Ordering::Relaxed);
    errno::preserve(|| set_mask(libc::SIG_SETMASK, area.mask.load(Ordering::Relaxed)));
}

fn set_mask(how: c_int, mask: u64) {
    let place = core::ptr::from_ref(&mask) as usize;
    // SAFETY: a mask of the kernel's size. The C library's function would leave out its own signals.
    unsafe { direct(libc::SYS_rt_sigprocmask, [how as usize, place, 0, size_of::<u64>(), 0, 0]) };
}

const SIGNALS: usize = 65;

/// What the program has set for a signal, while the kernel has `on_signal`. The handler is stored last: its release
/// pairs with the acquire of run(), which then has its flags.
struct Kept {
    handler: AtomicUsize,
    flags: AtomicU32,
}

static KEPT: [Kept; SIGNALS] = [const { Kept { handler: AtomicUsize::new(0), flags: AtomicU32::new(0) } }; SIGNALS];

fn kept(signal: c_int) -> Option<&'static Kept> {
    let number = usize::try_from(signal).ok().filter(|&number| number > 0)?;
    KEPT.get(number)
}

/// Flags that the kernel has otherwise than the program: it always gives the details, and what it would do before the
/// handler runs happens when it does.
const OWN_FLAGS: c_int = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESETHAND;

type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut ucontext_t);

/// Signals of what the interrupted instruction itself has done.
const FAULTS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let area = area();
    let depth = area.depth.load(Ordering::Relaxed);
    // SAFETY: the kernel gives the details (SA_SIGINFO).
    let is_fault = FAULTS.contains(&signal) && unsafe { (*info).si_code } > 0;
    if depth == 0 {
        return run(signal, info, context);
    }
    if is_fault {
        // The handler may leave the section by siglongjmp(3).
        area.depth.store(0, Ordering::Relaxed);
        run(signal, info, context);
        area.depth.store(depth, Ordering::Relaxed);
        return;
    }
    // SAFETY: the mask that the kernel restores when this function returns; its first 64 bits are the kernel's.
    let mask = unsafe { &mut *(&raw mut (*context).uc_sigmask).cast::<u64>() };
    // Of several signals that the kernel delivers at once the last one runs first, on top of the others: its mask is
    // that of the handler below, which blocks more.
    match area.pending.swap(1, Ordering::Relaxed) {
        0 => area.mask.store(*mask, Ordering::Relaxed),
        _ => area.mask.store(area.mask.load(Ordering::Relaxed) & *mask, Ordering::Relaxed),
    }
    *mask = u64::MAX;
    // SAFETY: the signal of this thread, which is blocked here, with the details that the kernel gave.
    errno::preserve(|| unsafe {
        let (process, thread) = (libc::getpid() as usize, direct(libc::SYS_gettid, [0; 6]) as usize);
        direct(libc::SYS_rt_tgsigqueueinfo, [process, thread, signal as usize, info as usize, 0, 0])
    });
}

/// Runs the program's handler.
fn run(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let Some(kept) = kept(signal) else { return };
    let flags = kept.flags.load(Ordering::Relaxed) as c_int;
    let handler = kept.handler.load(Ordering::Acquire);
    if flags & libc::SA_RESETHAND != 0 {
        // SAFETY: zero is the default action.
        unsafe { real::sigaction(signal, &zeroed(), null_mut()) };
    }
    if flags & libc::SA_NODEFER != 0 {
        set_mask(libc::SIG_UNBLOCK, 1 << (signal - 1));
    }
    // SAFETY: the program has set this function, which ignores arguments that it does not have.
    unsafe { transmute::<usize, Handler>(handler)(signal, info, context) }
}

fn own() -> usize {
    on_signal as *const () as usize
}

fn is_function(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN && handler != libc::SIG_ERR && handler != own()
}

/// Replaces what the kernel has by what the program has set.
fn shown(signal: c_int, action: &mut libc::sigaction) {
    if let Some(kept) = kept(signal).filter(|_| action.sa_sigaction == own()) {
        action.sa_sigaction = kept.handler.load(Ordering::Acquire);
        action.sa_flags = action.sa_flags & !OWN_FLAGS | kept.flags.load(Ordering::Relaxed) as c_int;
    }
}

/// Does sigaction(2). `is_other_process` returns whether a child of vfork(2) calls it, which has handlers of its own.
///
/// # Safety
/// As for the function of this name in the C library.
pub unsafe fn set(
    signal: c_int,
    wanted: *const libc::sigaction,
    before: *mut libc::sigaction,
    is_other_process: fn() -> bool,
) -> c_int {
    let kept = kept(signal);
    let known = kept.is_some();
    // SAFETY: the caller's action, if there is one.
    let action = unsafe { wanted.as_ref() }.filter(|action| known && is_function(action.sa_sigaction));
    let (Some(action), Some(kept)) = (action.filter(|_| !is_other_process()), kept) else {
        // SAFETY: the caller keeps the function's contract.
        let result = unsafe { real::sigaction(signal, wanted, before) };
        // SAFETY: as above.
        unsafe { before.as_mut() }.filter(|_| result == 0 && known).into_iter().for_each(|old| shown(signal, old));
        return result;
    };
    let mut old = (kept.handler.load(Ordering::Relaxed), kept.flags.load(Ordering::Relaxed));
    kept.flags.store((action.sa_flags & OWN_FLAGS) as u32, Ordering::Relaxed);
    kept.handler.store(action.sa_sigaction, Ordering::Release);
    let mut own_action = *action;
    own_action.sa_sigaction = own();
    own_action.sa_flags = own_action.sa_flags & !OWN_FLAGS | libc::SA_SIGINFO;
    // SAFETY: as above.
    let result = unsafe { real::sigaction(signal, &own_action, before) };
    if result == 0 {
        // SAFETY: as above.
        if let Some(before) = unsafe { before.as_mut() }.filter(|before| before.sa_sigaction == own()) {
            before.sa_sigaction = core::mem::take(&mut old.0);
            before.sa_flags = before.sa_flags & !OWN_FLAGS | old.1 as c_int;
        }
    } else {
        kept.flags.store(old.1, Ordering::Relaxed);
        kept.handler.store(old.0, Ordering::Release);
    }
    result
}

/// Runs one of the C library's older functions that set a handler and return the former one.
///
/// # Safety
/// As for that function.
pub unsafe fn set_by(signal: c_int, is_other_process: fn() -> bool, call: impl FnOnce() -> usize) -> usize {
    let Some(kept) = kept(signal) else { return call() };
    let kept = kept.handler.load(Ordering::Acquire);
    let former = call();
    // SAFETY: zero is a valid action; the structure is this function's.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        if former != libc::SIG_ERR
            && real::sigaction(signal, null(), &mut action) == 0
            && is_function(action.sa_sigaction)
        {
            set(signal, &action, null_mut(), is_other_process);
        }
    }
    if former == own() {
        kept
    } else {
        former
    }
}

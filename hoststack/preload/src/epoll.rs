// SPDX-License-Identifier: Apache-2.0

//! Sessions in the program's epoll instances.
//!
//! A session is in the kernel's instance twice: its socket, for the kernel's connection and its end, and its event,
//! edge-triggered, which the peer writes when this end has published that it may sleep. Both carry a tag instead of the
//! program's data. Which sessions may be ready is a queue here, as it is in the kernel for sockets: a session
//! leaves the queue when its rings have nothing, after it has published that it waits.

use crate::clock::Deadline;
use crate::lock::{Guard, Lock};
use crate::session::{make_event, signal, Rings, Session};
use crate::side::Phase;
use crate::syscall::direct;
use crate::{hidden, lock, real};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use libc::{
    c_int, epoll_event, sigset_t, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT,
};
use libc::{EPOLLRDHUP, EPOLLRDNORM, EPOLLWRBAND, EPOLLWRNORM, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};

const READ_BITS: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const WRITE_BITS: u32 = (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND) as u32;
const END_BITS: u32 = (EPOLLERR | EPOLLHUP | EPOLLRDHUP) as u32;
const ET: u32 = EPOLLET as u32;
const ONESHOT: u32 = EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = EPOLLEXCLUSIVE as u32;

/// Looks at a session without news after which its peer is asked to wake this end.
const PATIENCE: u32 = 64;

pub struct Epoll {
    fd: AtomicI32,
    /// The process that made it. A child of fork has the same instance of the kernel, but must not change it.
    process: AtomicU32,
    /// Descriptors of the instance in this process.
    descriptors: AtomicUsize,
    sleepers: AtomicUsize,
    /// Readable while the queue is not empty; only for an instance that is itself polled.
    nudge: AtomicI32,
    inner: Lock<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    by_fd: BTreeMap<c_int, usize>,
    queue: VecDeque<usize>,
    /// Entries without news whose peers are not asked to wake this end: each wait looks at them.
    hot: Vec<usize>,
    kernel_first: bool,
    /// The number of the wait that reports now.
    turn: u64,
}

/// Entry is one session in one instance, as the program added it.
struct Entry {
    fd: c_int,
    /// The number by which the kernel knows it: another one than `fd` if that is closed, but a copy of it is not.
    registered: c_int,
    session: &'static Session,
    events: u32,
    data: u64,
    /// EPOLLONESHOT has reported, and the program has not enabled it again.
    disabled: bool,
    queued: bool,
    /// Something happened since the last report: an edge.
    fresh: bool,
    /// What the kernel reported for the socket since then.
    kernel: u32,
    has_event: bool,
    /// It is in the list of hot entries, and was looked at as often without news.
    hot: bool,
    looks: u32,
    /// The peer's index at the last edge.
    seen: u64,
    /// The wait that reported it last: each reports an entry once.
    turn: u64,
}

static POOL: Lock<Vec<&'static Epoll>> = Lock::new(Vec::new());

/// Numbers of waits.
static TURNS: AtomicU64 = AtomicU64::new(1);

/// The upper half of tags, drawn once. No address of a program begins with these bits, and no number of a descriptor.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Tag is what the kernel keeps for this library instead of a program's data.
enum Tag {
    Socket(usize),
    Event(usize),
    Nudge,
}

const EVENT_BIT: u64 = 1 << 31;
const NUDGE: u64 = EVENT_BIT - 1;

fn key() -> u64 {
    let known = KEY.load(Ordering::Relaxed);
    if known != 0 {
        return u64::from(known) << 32;
    }
    let mut random = [0u8; 2];
    // SAFETY: two octets of this function's own.
    unsafe { libc::getrandom(random.as_mut_ptr().cast(), 2, libc::GRND_NONBLOCK) };
    let drawn = 0xbee1_0000 | u32::from(u16::from_ne_bytes(random));
    let _ = KEY.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed);
    u64::from(KEY.load(Ordering::Relaxed)) << 32
}

impl Tag {
    fn pack(&self) -> u64 {
        key()
            | match self {
                Tag::Socket(slot) => *slot as u64,
                Tag::Event(slot) => EVENT_BIT | *slot as u64,
                Tag::Nudge => NUDGE,
            }
    }

    fn unpack(data: u64) -> Option<Self> {
        if data >> 32 << 32 != key() {
            return None;
        }
        let slot = (data & (EVENT_BIT - 1)) as usize;
        Some(match data & (2 * EVENT_BIT - 1) {
            NUDGE => Tag::Nudge,
            low if low & EVENT_BIT != 0 => Tag::Event(slot),
            _ => Tag::Socket(slot),
        })
    }
}

impl Epoll {
    pub fn make(fd: c_int) -> &'static Epoll {
        let epoll = POOL.lock().pop().unwrap_or_else(|| {
            Box::leak(Box::new(Epoll {
                fd: AtomicI32::new(-1),
                process: AtomicU32::new(0),
                descriptors: AtomicUsize::new(0),
                sleepers: AtomicUsize::new(0),
                nudge: AtomicI32::new(-1),
                inner: Lock::new(Inner::default()),
            }))
        });
        epoll.fd.store(fd, Ordering::Relaxed);
        epoll.process.store(lock::process(), Ordering::Relaxed);
        epoll.descriptors.store(1, Ordering::Relaxed);
        epoll
    }

    pub fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::Relaxed);
    }

    /// drop_descriptor is called after the entry of `fd` was removed. `other` is a descriptor that remains.
    pub fn drop_descriptor(&'static self, fd: c_int, other: impl FnOnce() -> Option<c_int>) {
        if self.descriptors.fetch_sub(1, Ordering::Relaxed) == 1 {
            return self.recycle();
        }
        if self.fd.load(Ordering::Relaxed) == fd {
            self.fd.store(other().unwrap_or(-1), Ordering::Relaxed);
        }
    }

    /// recycle gives an instance without descriptors back to the pool.
    pub fn recycle(&'static self) {
        let entries = core::mem::take(&mut *self.inner.lock()).entries;
        for entry in entries.into_iter().flatten() {
            entry.session.watches.lock().retain(|&(epoll, _)| !core::ptr::eq(epoll, self));
            self.unregister(&entry);
            entry.session.is_not_watched_by(self);
            entry.session.let_go();
        }
        hidden::dispose(self.nudge.swap(-1, Ordering::Relaxed));
        POOL.lock().push(self);
    }

    /// watch prepares for an instance that is itself polled, or in another instance.
    pub fn watch(&self) {
        if self.nudge.load(Ordering::Relaxed) >= 0 {
            return;
        }
        let mut inner = self.inner.lock();
        let Some(event) = make_event() else { return };
        let _ = self.kernel(EPOLL_CTL_ADD, event, EPOLLIN as u32, &Tag::Nudge);
        self.nudge.store(event, Ordering::Relaxed);
        inner.cool_all();
        self.update_nudge(&mut inner);
    }

    fn update_nudge(&self, inner: &mut Inner) {
        let nudge = self.nudge.load(Ordering::Relaxed);
        if nudge < 0 {
            return;
        }
        inner.settle();
        match inner.queue.is_empty() {
            true => crate::session::drain(nudge),
            false => signal(nudge),
        }
    }

    fn kernel(&self, operation: c_int, fd: c_int, events: u32, tag: &Tag) -> Result<(), i32> {
        let mut event = epoll_event { events, u64: tag.pack() };
        // SAFETY: the event is this function's.
        let result = unsafe { real::epoll_ctl(self.fd.load(Ordering::Relaxed), operation, fd, &mut event) };
        real::outcome(result as isize).map(|_| ())
    }

    /// control is epoll_ctl(2) for a session.
    pub fn control(
        &'static self,
        operation: c_int,
        fd: c_int,
        session: &'static Session,
        wanted: Option<epoll_event>,
    ) -> Result<(), i32> {
        match (operation, wanted) {
            (EPOLL_CTL_ADD, Some(wanted)) => self.add(fd, session, wanted),
            (EPOLL_CTL_MOD, Some(wanted)) => self.modify(fd, wanted),
            (EPOLL_CTL_DEL, _) => self.delete(fd),
            (EPOLL_CTL_ADD | EPOLL_CTL_MOD, None) => Err(libc::EFAULT),
            _ => Err(libc::EINVAL),
        }
    }

    fn add(&'static self, fd: c_int, session: &'static Session, wanted: epoll_event) -> Result<(), i32> {
        let mut inner = self.inner.lock();
        if inner.by_fd.contains_key(&fd) {
            return Err(libc::EEXIST);
        }
        let entry = Entry {
            fd,
            registered: fd,
            session,
            events: wanted.events,
            data: wanted.u64,
            disabled: false,
            queued: false,
            fresh: true,
            kernel: 0,
            has_event: false,
            hot: false,
            looks: 0,
            seen: 0,
            turn: 0,
        };
        let events = entry.kernel_events();
        let slot = inner.insert(entry);
        if let Err(error) = self.kernel(EPOLL_CTL_ADD, fd, events, &Tag::Socket(slot)) {
            inner.remove(slot);
            return Err(error);
        }
        session.hold();
        session.watches.lock().push((self, slot));
        if session.is_attached() {
            self.add_event(&mut inner, slot);
        }
        Ok(())
    }

    /// add_event adds the session's event, and has the next wait look at the session.
    fn add_event(&self, inner: &mut Guard<Inner>, slot: usize) {
        let Some(entry) = &mut inner.entries[slot] else { return };
        if !entry.has_event {
            entry.has_event = true;
            let event = entry.session.own_event.load(Ordering::Relaxed);
            // Another descriptor of the same session may have added it.
            let _ = self.kernel(EPOLL_CTL_ADD, event, EPOLLIN as u32 | ET, &Tag::Event(slot));
        }
        self.refresh(inner, slot);
    }

    /// refresh has the next wait look at an entry, also one that sleeps now.
    fn refresh(&self, inner: &mut Guard<Inner>, slot: usize) {
        let Some(entry) = &mut inner.entries[slot] else { return };
        let session = entry.session;
        entry.fresh = true;
        inner.enqueue(slot);
        self.update_nudge(&mut *inner);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            session.wake();
        }
    }

    fn modify(&self, fd: c_int, wanted: epoll_event) -> Result<(), i32> {
        let mut inner = self.inner.lock();
        let slot = *inner.by_fd.get(&fd).ok_or(libc::ENOENT)?;
        let entry = inner.entries[slot].as_mut().ok_or(libc::ENOENT)?;
        if (entry.events | wanted.events) & EXCLUSIVE != 0 {
            return Err(libc::EINVAL);
        }
        let before = (entry.events, entry.data);
        (entry.events, entry.data) = (wanted.events, wanted.u64);
        if let Err(error) = self.kernel(EPOLL_CTL_MOD, fd, entry.kernel_events(), &Tag::Socket(slot)) {
            (entry.events, entry.data) = before;
            return Err(error);
        }
        (entry.disabled, entry.kernel) = (false, 0);
        if entry.has_event {
            self.refresh(&mut inner, slot);
        }
        Ok(())
    }

    fn delete(&self, fd: c_int) -> Result<(), i32> {
        let mut inner = self.inner.lock();
        let slot = *inner.by_fd.get(&fd).ok_or(libc::ENOENT)?;
        let result = self.kernel(EPOLL_CTL_DEL, fd, 0, &Tag::Nudge);
        self.forget(&mut inner, slot, true);
        result
    }

    /// forget removes an entry. Its session's event goes to another entry of the session, or is removed if there is none.
    fn forget(&self, inner: &mut Guard<Inner>, slot: usize, in_kernel: bool) {
        let Some(entry) = inner.remove(slot) else { return };
        let other = inner.slot_of(entry.session);
        if other.is_none() {
            entry.session.is_not_watched_by(self);
        }
        if entry.has_event && in_kernel {
            let event = entry.session.own_event.load(Ordering::Relaxed);
            let _ = match other {
                Some(other) => self.kernel(EPOLL_CTL_MOD, event, EPOLLIN as u32 | ET, &Tag::Event(other)),
                None => self.kernel(EPOLL_CTL_DEL, event, 0, &Tag::Nudge),
            };
        }
        entry.session.watches.lock().retain(|&(epoll, at)| !(core::ptr::eq(epoll, self) && at == slot));
        self.unregister(&entry);
        entry.session.let_go();
    }

    /// closed forgets a session whose last descriptor of this process is closed. The kernel forgets its socket only if
    /// no other process has it.
    pub fn closed(&self, slot: usize, open_elsewhere: bool) {
        let mut inner = self.inner.lock();
        if let Some(entry) = inner.entry(slot).filter(|_| open_elsewhere && self.is_own()) {
            let _ = self.kernel(EPOLL_CTL_DEL, entry.registered, 0, &Tag::Nudge);
        }
        self.forget(&mut inner, slot, self.is_own());
    }

    /// orphan is the end of the descriptor by which an entry was added, while the session has others. Such an entry still
    /// reports, and the program cannot change it any more. The kernel has to know it by a number that stays.
    pub fn orphan(&self, slot: usize, fd: c_int) {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.entries[slot].as_mut().filter(|entry| entry.fd == fd && entry.registered == fd) else {
            return;
        };
        let events = if entry.disabled { ET } else { entry.kernel_events() };
        entry.registered = -1;
        if self.is_own() {
            let _ = self.kernel(EPOLL_CTL_DEL, fd, 0, &Tag::Nudge);
            // SAFETY: fcntl of a descriptor.
            let copy = hidden::adopt(unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) });
            entry.registered = copy.unwrap_or(-1);
            let _ = self.kernel(EPOLL_CTL_ADD, entry.registered, events, &Tag::Socket(slot));
        }
        inner.by_fd.remove(&fd);
    }

    /// unregister closes the number that orphan made.
    fn unregister(&self, entry: &Entry) {
        if entry.registered != entry.fd {
            hidden::dispose(entry.registered);
        }
    }

    /// is_own is true in a child of fork only if the process that made the instance has ended.
    fn is_own(&self) -> bool {
        let maker = self.process.load(Ordering::Relaxed);
        maker == lock::process() || lock::has_ended(maker)
    }

    /// attach adds the event of a session that has got rings.
    pub fn attach(&self, slot: usize) {
        let mut inner = self.inner.lock();
        self.add_event(&mut inner, slot);
    }

    /// resync tells the kernel what to report after writing has moved between the ring and the kernel's connection.
    pub fn resync(&self, slot: usize) {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.entry(slot).filter(|e| e.events & WRITE_BITS != 0) else { return };
        if !entry.disabled {
            let _ = self.reregister(entry, slot, entry.kernel_events());
        }
        self.refresh(&mut inner, slot);
    }

    /// reregister changes the events of a socket. The kernel does not change exclusive ones.
    fn reregister(&self, entry: &Entry, slot: usize, events: u32) -> Result<(), i32> {
        if entry.events & EXCLUSIVE == 0 {
            return self.kernel(EPOLL_CTL_MOD, entry.registered, events, &Tag::Socket(slot));
        }
        self.kernel(EPOLL_CTL_DEL, entry.registered, 0, &Tag::Nudge)?;
        self.kernel(EPOLL_CTL_ADD, entry.registered, events, &Tag::Socket(slot))
    }

    /// collect moves ready entries of the queue to `out`.
    fn collect(&self, turn: u64, out: &mut [epoll_event]) -> usize {
        let mut inner = self.inner.lock();
        inner.look(self);
        inner.turn = turn;
        let mut n = 0;
        for _ in 0..inner.queue.len() {
            if n == out.len() {
                break;
            }
            let Some(slot) = inner.queue.pop_front() else { break };
            n += usize::from(self.report(&mut inner, slot, &mut out[n]));
        }
        if n > 0 && !inner.queue.is_empty() && self.sleepers.load(Ordering::SeqCst) > 0 {
            if let Some(entry) = inner.queue.front().and_then(|&slot| inner.entries[slot].as_ref()) {
                entry.session.wake();
            }
        }
        self.update_nudge(&mut inner);
        n
    }

    /// report stores the events of an entry, if it has any, and decides whether it stays in the queue.
    fn report(&self, inner: &mut Guard<Inner>, slot: usize, out: &mut epoll_event) -> bool {
        let turn = inner.turn;
        let lazy = self.is_polled_by_one_thread();
        let Some(entry) = &mut inner.entries[slot] else { return false };
        entry.queued = false;
        if entry.turn == turn {
            inner.enqueue(slot);
            return false;
        }
        let by_kernel = entry.kernel != 0;
        let was_hot = entry.hot;
        let events = entry.take_ready(lazy.then_some(self));
        if entry.hot && !was_hot {
            inner.hot.push(slot);
        }
        if events == 0 {
            return false;
        }
        let Some(entry) = &mut inner.entries[slot] else { return false };
        *out = epoll_event { events, u64: entry.data };
        entry.turn = turn;
        if entry.events & ONESHOT != 0 {
            entry.disabled = true;
            if !by_kernel {
                // ERR and HUP are always reported, but with ET only once.
                let _ = self.kernel(EPOLL_CTL_MOD, entry.registered, ET, &Tag::Socket(slot));
            }
        } else if entry.events & ET == 0 && entry.has_event {
            inner.enqueue(slot);
        }
        true
    }

    /// is_polled_by_one_thread reports whether nobody else sleeps on the instance: then the next wait of this thread looks
    /// at hot entries before it sleeps.
    fn is_polled_by_one_thread(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) == 0 && self.nudge.load(Ordering::Relaxed) < 0
    }

    /// sort goes through the first `n` of `out`, which the kernel reported: events of sessions go to the queue, others
    /// stay. It returns how many do.
    fn sort(&self, out: &mut [epoll_event], n: usize) -> usize {
        let mut inner = self.inner.lock();
        let mut kept = 0;
        for i in 0..n {
            let event = out[i];
            match Tag::unpack(event.u64) {
                None => {
                    out[kept] = event;
                    kept += 1;
                }
                Some(Tag::Nudge) => {}
                Some(Tag::Socket(slot)) => inner.socket_event(slot, event.events),
                Some(Tag::Event(slot)) => inner.own_event(self, slot),
            }
        }
        kept
    }

    /// wait is epoll_wait(2).
    pub fn wait(
        &self,
        fd: c_int,
        out: &mut [epoll_event],
        limit: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<usize, i32> {
        let deadline = Deadline::after(limit);
        loop {
            let turn = TURNS.fetch_add(1, Ordering::Relaxed);
            let first = self.share(out.len());
            let mut n = self.collect(turn, &mut out[..first]);
            if n < out.len() {
                match self.ask(fd, &mut out[n..], n > 0, deadline, mask) {
                    Ok(more) => n += more,
                    Err(error) if n == 0 => return Err(error),
                    Err(_) => {}
                }
                n += self.collect(turn, &mut out[n..]);
            }
            if n > 0 || deadline.is_over() {
                return Ok(n);
            }
        }
    }

    /// share is how many events sessions may have before the kernel is asked, so that neither starves the other.
    fn share(&self, most: usize) -> usize {
        if most > 1 {
            return most - most / 4;
        }
        let mut inner = self.inner.lock();
        inner.kernel_first = !inner.kernel_first;
        usize::from(!inner.kernel_first)
    }

    /// ask gets events from the kernel, and waits for them unless there are others or the queue has work.
    fn ask(
        &self,
        fd: c_int,
        out: &mut [epoll_event],
        has_others: bool,
        deadline: Deadline,
        mask: *const sigset_t,
    ) -> Result<usize, i32> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let idle = !has_others && self.inner.lock().fall_asleep();
        let left = match idle {
            true => deadline.left(),
            false => Some(Duration::ZERO),
        };
        let result = kernel_wait(fd, out, left, mask);
        if self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.wake_up();
        }
        Ok(self.sort(out, result?))
    }

    /// wake_up has peers of hot entries publish without waking this end, unless another thread has fallen asleep since.
    fn wake_up(&self) {
        let inner = self.inner.lock();
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            inner.hot_rings().for_each(|rings| rings.receive().consumer_is_awake());
        }
    }

    /// translate sorts what a wait returned that began before the instance had sessions.
    pub fn translate(&self, out: &mut [epoll_event], n: usize) -> usize {
        let kept = self.sort(out, n);
        kept + self.collect(TURNS.fetch_add(1, Ordering::Relaxed), &mut out[kept..])
    }
}

/// kernel_wait is the kernel's epoll_wait. Time-outs of whole milliseconds need no newer system call.
pub fn kernel_wait(
    fd: c_int,
    out: &mut [epoll_event],
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> Result<usize, i32> {
    let (at, most) = (out.as_mut_ptr(), out.len() as c_int);
    let precise = limit.filter(|limit| limit.subsec_nanos() % 1_000_000 != 0 && limit.as_millis() < 10);
    if let Some(limit) = precise {
        let limit = crate::wait::to_timespec(limit);
        let limit = core::ptr::from_ref(&limit) as usize;
        let arguments = [fd as usize, at as usize, most as usize, limit, mask as usize, size_of::<u64>()];
        // SAFETY: as epoll_pwait2(2), with the kernel's size of a signal mask.
        let n = unsafe { direct(libc::SYS_epoll_pwait2, arguments) };
        if n >= 0 || real::errno() != libc::ENOSYS {
            return real::outcome(n as isize);
        }
    }
    let milliseconds = limit.map_or(-1, |limit| limit.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as c_int);
    // SAFETY: `most` events have room at `at`; the mask is the program's.
    real::outcome(unsafe { real::epoll_pwait(fd, at, most, milliseconds, mask) } as isize)
}

impl Inner {
    fn insert(&mut self, entry: Entry) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.by_fd.insert(entry.fd, slot);
        self.entries[slot] = Some(entry);
        slot
    }

    fn entry(&self, slot: usize) -> Option<&Entry> {
        self.entries.get(slot)?.as_ref()
    }

    fn slot_of(&self, session: &Session) -> Option<usize> {
        self.entries.iter().position(|entry| entry.as_ref().is_some_and(|e| core::ptr::eq(e.session, session)))
    }

    fn remove(&mut self, slot: usize) -> Option<Entry> {
        let entry = self.entries[slot].take()?;
        if entry.registered == entry.fd {
            self.by_fd.remove(&entry.fd);
        }
        self.queue.retain(|&queued| queued != slot);
        self.hot.retain(|&hot| hot != slot);
        self.free.push(slot);
        Some(entry)
    }

    /// settle takes entries out of the queue that have nothing to report.
    fn settle(&mut self) {
        for slot in core::mem::take(&mut self.queue) {
            let Some(entry) = &mut self.entries[slot] else { continue };
            entry.queued = false;
            if entry.has_something() {
                self.enqueue(slot);
            }
        }
    }

    /// look enqueues hot entries that have news. Those without stay, for a while.
    fn look(&mut self, epoll: &Epoll) {
        self.review(|entry| {
            entry.looks += 1;
            let stays = entry.looks < PATIENCE && !entry.disabled && entry.session.watched_only_by(epoll);
            if !stays {
                entry.publish_waits();
            }
            (stays, entry.has_news())
        });
    }

    /// cool_all has peers of all hot entries wake this end.
    fn cool_all(&mut self) {
        self.review(|entry| {
            entry.publish_waits();
            (false, entry.has_news())
        });
    }

    /// review asks for each hot entry whether it stays hot, and whether it has news.
    fn review(&mut self, judge: impl Fn(&mut Entry) -> (bool, bool)) {
        let mut i = 0;
        while let Some(&slot) = self.hot.get(i) {
            let (stays, news) = self.entries[slot].as_mut().map_or((false, false), &judge);
            if stays && !news {
                i += 1;
                continue;
            }
            self.hot.swap_remove(i);
            if let Some(entry) = &mut self.entries[slot] {
                entry.hot = false;
                entry.fresh |= news;
            }
            if news {
                self.enqueue(slot);
            }
        }
    }

    /// fall_asleep has peers of hot entries wake this end for their next octets; false if there are some already, or
    /// other work.
    fn fall_asleep(&mut self) -> bool {
        if !self.queue.is_empty() {
            return false;
        }
        self.hot_rings().for_each(|rings| rings.receive().consumer_sleeps());
        !self.hot_entries().any(Entry::has_news)
    }

    fn hot_entries(&self) -> impl Iterator<Item = &Entry> {
        self.hot.iter().filter_map(|&slot| self.entry(slot))
    }

    fn hot_rings(&self) -> impl Iterator<Item = Rings> + '_ {
        self.hot_entries().filter_map(|entry| entry.session.rings())
    }

    fn enqueue(&mut self, slot: usize) {
        if let Some(entry) = self.entries[slot].as_mut().filter(|entry| !entry.queued) {
            entry.queued = true;
            self.queue.push_back(slot);
        }
    }

    fn socket_event(&mut self, slot: usize, events: u32) {
        let Some(entry) = self.entries.get_mut(slot).and_then(Option::as_mut) else { return };
        entry.kernel |= events;
        entry.fresh = true;
        let in_ring = entry.has_event && entry.session.side().receive.phase() == Phase::Ring;
        if events & END_BITS != 0 || in_ring && events & READ_BITS != 0 {
            entry.session.suspect.store(true, Ordering::Relaxed);
        }
        self.enqueue(slot);
    }

    /// own_event is for all descriptors by which the session was added to `epoll`.
    fn own_event(&mut self, epoll: &Epoll, slot: usize) {
        let Some(session) = self.entry(slot).map(|entry| entry.session) else { return };
        for &(_, slot) in session.watches.lock().iter().filter(|(e, _)| core::ptr::eq(*e, epoll)) {
            if let Some(entry) = self.entries[slot].as_mut() {
                entry.fresh = true;
            }
            self.enqueue(slot);
        }
    }
}

impl Entry {
    /// kernel_events are those that the kernel reports. While the ring carries what is sent, the kernel does not
    /// know whether there is room, but whether the peer is gone.
    fn kernel_events(&self) -> u32 {
        let in_ring = self.session.side().send.phase() == Phase::Ring;
        match in_ring && self.events & WRITE_BITS != 0 {
            true => self.events & !WRITE_BITS | EPOLLRDHUP as u32,
            false => self.events,
        }
    }

    /// take_ready returns what is to be reported now. Without any, the next is noticed: by the next wait if the instance
    /// `looks`, or because the peer wakes this end.
    fn take_ready(&mut self, looks: Option<&Epoll>) -> u32 {
        if self.disabled {
            return 0;
        }
        let kernel = core::mem::take(&mut self.kernel);
        let ring = match self.events & ET != 0 {
            true => self.ring_edge(looks),
            false => self.ring_level(looks),
        };
        self.merge(kernel, ring)
    }

    /// has_something is take_ready without taking.
    fn has_something(&mut self) -> bool {
        let fresh = self.fresh;
        let (kernel, events) = (self.kernel, self.take_ready(None));
        (self.kernel, self.fresh) = (kernel, fresh && events != 0);
        events != 0
    }

    /// ring_edge is what the rings have after an edge. The next change is another edge, whether or not the program
    /// takes what there is.
    fn ring_edge(&mut self, looks: Option<&Epoll>) -> u32 {
        if !core::mem::take(&mut self.fresh) {
            return 0;
        }
        self.expect(looks);
        self.ring_ready()
    }

    fn ring_level(&mut self, looks: Option<&Epoll>) -> u32 {
        let ready = self.ring_ready();
        if ready != 0 {
            return ready;
        }
        self.expect(looks);
        self.ring_ready()
    }

    /// expect has the next change noticed.
    fn expect(&mut self, looks: Option<&Epoll>) {
        let Some(rings) = self.session.rings().filter(|_| self.has_event) else { return };
        let reads = self.events & READ_BITS != 0;
        match looks.filter(|epoll| reads && self.session.watched_only_by(epoll)) {
            Some(_) => {
                (self.hot, self.looks, self.seen) = (true, 0, rings.receive().mark());
                self.publish_writer_waits(&rings);
            }
            None => self.publish_waits(),
        }
    }

    /// has_news reports whether a hot entry has something to report.
    fn has_news(&self) -> bool {
        let Some(rings) = self.session.rings().filter(|_| !self.disabled) else { return false };
        match self.events & ET != 0 {
            true => rings.receive().mark() != self.seen,
            false => self.session.is_readable(&rings),
        }
    }

    fn merge(&self, kernel: u32, ring: u32) -> u32 {
        (kernel | ring) & (self.events | (EPOLLERR | EPOLLHUP) as u32)
    }

    fn ring_ready(&self) -> u32 {
        let Some(rings) = self.session.rings().filter(|_| self.has_event) else { return 0 };
        let mut events = 0;
        if self.events & READ_BITS != 0 && self.session.is_readable(&rings) {
            events |= READ_BITS;
        }
        if self.events & WRITE_BITS != 0 && self.session.is_writable(&rings) {
            events |= (EPOLLOUT | EPOLLWRNORM) as u32;
        }
        events & self.events
    }

    /// publish_waits has the peer write this end's event at the next change that the program asked for.
    fn publish_waits(&self) {
        let Some(rings) = self.session.rings().filter(|_| self.has_event) else { return };
        if self.events & READ_BITS != 0 {
            rings.receive().consumer_waits();
        }
        self.publish_writer_waits(&rings);
    }

    /// publish_writer_waits is for a full ring. As on the kernel, one that was never full reports no edge.
    fn publish_writer_waits(&self, rings: &Rings) {
        let in_ring = self.session.side().send.phase() == Phase::Ring;
        if self.events & WRITE_BITS != 0 && in_ring && !self.session.is_writable(rings) {
            rings.send().producer_waits();
        }
    }
}

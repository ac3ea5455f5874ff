// SPDX-License-Identifier: Apache-2.0

//! How both ends of a connection agree on rings, while the kernel's connection carries it.
//!
//! The connector opens a mailbox, a Unix socket in the abstract namespace with the cookie of its TCP socket as name.
//! Abstract names belong to a network namespace, as TCP connections within one do, so no file system has to be
//! shared. The acceptor asks the kernel for the cookie by the addresses of the connection, makes the memory, and sends it
//! to the mailbox. Each end checks that the other has the user that the kernel names as owner of the other socket.
//!
//! Neither waits for the other. When a connection has earned rings (`earn`), the acceptor tries at the next operation, the
//! 2nd, 4th, 8th after it and so on, and the connector looks into the mailbox before each of its next operations, and then
//! before as many.

use crate::counters::Refusal;
use crate::session::{make_event, Identity, Memory, Session};
use crate::signals::Section;
use crate::{clients, config, descriptors, diag, earn, hidden, identity, page, real};
use alloc::vec::Vec;
use beeline_ring::{Header, Layout, Role};
use core::mem::{size_of, zeroed};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, sockaddr_un};

/// After as many operations an end without rings stops trying.
const LAST_TRY: u32 = 1024;

/// And age, in milliseconds: a fast connector has more operations before the acceptor has earned rings.
const LAST_AGE: u64 = 250;

/// A connector that would answer has opened its mailbox when the acceptor asks the 4th time.
const LATE: u32 = 8;

/// A connector looks for an offer before each of its next operations, and later when the acceptor may have made
/// one: a look is a system call, and most peers never make an offer.
const FIRST_LOOKS: u32 = 8;

/// before is called before each operation on a session.
pub fn before(session: &'static Session, fd: c_int) {
    if page::is_off() {
        session.leave_rings();
        session.close_mailbox();
        return;
    }
    look_at_times(session, fd);
}

fn look_at_times(session: &'static Session, fd: c_int) {
    let n = session.merits.operations.load(Ordering::Relaxed);
    if n <= FIRST_LOOKS || n.is_power_of_two() || session.visitor.load(Ordering::Relaxed) >= 0 {
        look(session, fd);
    }
}

/// look has a connector take an offer, if there is one.
pub fn look(session: &'static Session, fd: c_int) {
    if session.mailbox.load(Ordering::Relaxed) >= 0 && !session.is_attached() {
        exclusively(session, || take_offer(session, fd));
    }
}

/// after is called after each operation that moved octets.
pub fn after(session: &'static Session, fd: c_int) {
    within(session, fd, 0);
}

/// within is after for a part of an operation. So many octets of it are left.
pub fn within(session: &'static Session, fd: c_int, left: usize) {
    if session.is_attached()
        || session.anticipated.load(Ordering::Relaxed)
        || session.merits.is_settled()
        || page::is_off()
    {
        return;
    }
    let n = session.merits.operations.fetch_add(1, Ordering::Relaxed) + 1;
    if session.merits.asks() || earn::earns(session, fd, n, left) {
        exclusively(session, || ask(session, fd));
        if left > 0 {
            look_at_times(session, fd);
        }
    }
}

/// ask is what an end does that has earned rings.
fn ask(session: &'static Session, fd: c_int) {
    let (n, identity) = (session.merits.operations.load(Ordering::Relaxed), session.identity());
    if identity.side.stays.load(Ordering::Relaxed) != 0 {
        return give_up(session, Refusal::Kept);
    }
    let is_shared = || !identity.side.owners.is_alone();
    if n > LAST_TRY && session.merits.age() > LAST_AGE {
        return give_up(session, if is_shared() { Refusal::Kept } else { Refusal::NoAnswer });
    }
    // A process that has forked may close its descriptor yet, as servers do.
    if !n.is_power_of_two() || is_shared() {
        return;
    }
    if identity.role == Role::Connector {
        return open_mailbox(session, fd);
    }
    let tried = without_calls(session, || {
        let _ = make_offer(session, fd, &identity, n);
    });
    if !tried {
        // The next operation is the same again.
        session.merits.operations.fetch_sub(1, Ordering::Relaxed);
    }
}

/// without_calls runs `f`, which may attach the session, unless a thread is in a call of the kernel: false.
fn without_calls(session: &Session, f: impl FnOnce()) -> bool {
    if !session.merits.shut() {
        return false;
    }
    f();
    if !session.is_attached() {
        session.merits.reopen();
    }
    true
}

/// is_settled reports whether a session stays on the kernel for good.
pub fn is_settled(session: &Session) -> bool {
    let over = session.merits.is_settled() || session.side().stays.load(Ordering::Relaxed) != 0;
    over && !session.is_attached()
}

/// give_up leaves a session to the kernel for good.
fn give_up(session: &Session, why: Refusal) {
    page::counters().refuse(why);
    session.close_mailbox();
    session.merits.settle();
}

/// exclusively runs `f` unless another thread does so for this session, and keeps errno.
pub fn exclusively(session: &'static Session, f: impl FnOnce()) -> bool {
    let _section = Section::enter();
    let Some(_alone) = unattached(session) else { return false };
    let before = real::errno();
    f();
    real::set_errno(before);
    true
}

/// Alone is a session that gets no rings meanwhile.
pub struct Alone(pub &'static Session);

/// unattached is None if the session has rings, or another thread is about to get some.
pub fn unattached(session: &'static Session) -> Option<Alone> {
    if session.is_attached() || session.upgrading.swap(true, Ordering::SeqCst) {
        return None;
    }
    let alone = Alone(session);
    (!session.is_attached()).then_some(alone)
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.upgrading.store(false, Ordering::Release);
    }
}

/// address is the mailbox of a connector.
fn address(cookie: u64) -> (sockaddr_un, libc::socklen_t) {
    let name = alloc::format!("\0beeline-hoststack-1/{cookie:016x}");
    // SAFETY: zero is a valid sockaddr_un.
    let mut address: sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    (address, (size_of::<libc::sa_family_t>() + name.len()) as libc::socklen_t)
}

fn unix_socket() -> Option<c_int> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket has no preconditions.
    hidden::adopt(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

fn open_mailbox(session: &'static Session, fd: c_int) {
    if session.mailbox.load(Ordering::Relaxed) >= 0 {
        return;
    }
    let (Some(cookie), Some(socket)) = (identity::cookie(fd), unix_socket()) else { return };
    let (address, length) = address(cookie);
    // SAFETY: the address has that length.
    let bound = unsafe { libc::bind(socket, core::ptr::from_ref(&address).cast(), length) == 0 };
    // SAFETY: listen of this function's own socket.
    if bound && unsafe { libc::listen(socket, 1) } == 0 {
        session.mailbox.store(socket, Ordering::Release);
    } else {
        give_up(session, Refusal::Memory);
        hidden::dispose(socket);
    }
}

/// user_of is the user at the other end of a Unix socket.
fn user_of(socket: c_int) -> Option<u32> {
    // SAFETY: zero is a valid ucred.
    let mut peer: libc::ucred = unsafe { zeroed() };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let place = core::ptr::from_mut(&mut peer).cast();
    // SAFETY: SO_PEERCRED stores a ucred.
    let result = unsafe { real::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut length) };
    (result == 0).then_some(peer.uid)
}

/// Offer is what the acceptor writes beside the descriptors: the connection, as it sees it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Offer {
    server: [u8; 16],
    client: [u8; 16],
    server_port: u16,
    client_port: u16,
}

impl Offer {
    fn new(server: SocketAddr, client: SocketAddr) -> Self {
        Self {
            server: octets(server.ip()),
            client: octets(client.ip()),
            server_port: server.port(),
            client_port: client.port(),
        }
    }

    fn server(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.server).to_canonical(), self.server_port)
    }

    fn client(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.client).to_canonical(), self.client_port)
    }

    fn list(&self, session: &Session) {
        let Identity { role, side, .. } = session.identity();
        page::list(side, role, (self.server, self.server_port), (self.client, self.client_port));
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// make_offer makes rings and sends them to the connector, if it has opened its mailbox. None if it has not.
fn make_offer(session: &'static Session, fd: c_int, identity: &Identity, attempt: u32) -> Option<()> {
    let (server, client) = identity.ends?;
    if !descriptors::has_ends(fd, server, client) {
        // The number is another connection now.
        session.merits.settle();
        return None;
    }
    let Some(owner) = diag::owner(client, server) else {
        give_up(session, Refusal::Elsewhere);
        return None;
    };
    if attempt == 1 && !clients::is_worth(owner.client()) {
        give_up(session, Refusal::NoAnswer);
        return None;
    }
    let Some(socket) = connect_mailbox(&owner) else {
        if attempt == LATE {
            clients::failed(owner.client());
        }
        return None;
    };
    clients::answered(owner.client());
    let sent = send_offer(session, fd, socket, Offer::new(server, client));
    hidden::dispose(socket);
    sent
}

fn connect_mailbox(owner: &diag::Owner) -> Option<c_int> {
    let socket = unix_socket()?;
    let (address, length) = address(owner.cookie);
    // SAFETY: the address has that length.
    let connected = unsafe { real::connect(socket, core::ptr::from_ref(&address).cast(), length) == 0 };
    if connected && user_of(socket) == Some(owner.uid) {
        return Some(socket);
    }
    hidden::dispose(socket);
    None
}

/// send_offer attaches this end first: from the moment of the offer the connector may use the rings.
fn send_offer(session: &'static Session, fd: c_int, socket: c_int, offer: Offer) -> Option<()> {
    if !Session::reserve() {
        page::counters().refuse(Refusal::Limit);
        return None;
    }
    let Some((memory, rings, own, peer)) = make_all() else {
        page::counters().refuse(Refusal::Memory);
        Session::unreserve();
        return None;
    };
    session.attach(fd, rings, own, peer);
    offer.list(session);
    // A child that was forked meanwhile has the connection without rings.
    if !session.side().owners.is_alone() || !send_descriptors(socket, &offer, [memory, peer, own]) {
        session.close_rings();
    }
    real::close_quietly(memory);
    Some(())
}

/// make_all makes the memory of rings, and the events of both ends.
fn make_all() -> Option<(c_int, Memory, c_int, c_int)> {
    let (memory, rings) = make_memory()?;
    let events = (make_event(), make_event());
    if let (Some(own), Some(peer)) = events {
        return Some((memory, rings, own, peer));
    }
    [events.0, events.1].into_iter().flatten().for_each(hidden::dispose);
    real::close_quietly(memory);
    None
}

/// make_memory makes memory for rings that cannot shrink under the peer.
fn make_memory() -> Option<(c_int, Memory)> {
    let capacity = config::get().ring;
    let length = Layout::bytes(capacity);
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with a zero octet.
    let fd = unsafe { libc::memfd_create(c"beeline-ring".as_ptr(), flags) };
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: ftruncate and fcntl of this function's own descriptor.
    let sealed = fd >= 0
        && unsafe { libc::ftruncate(fd, length as libc::off_t) } == 0
        && unsafe { real::fcntl(fd, libc::F_ADD_SEALS, seals as usize) } == 0;
    let mapped = if sealed { map(fd, length) } else { None };
    let Some(at) = mapped else {
        if fd >= 0 {
            real::close_quietly(fd);
        }
        return None;
    };
    // SAFETY: the mapping is large enough, aligned, and no one else has it yet.
    unsafe { at.cast::<Header>().write(Header::new(capacity)) };
    let layout = Layout { capacity, version: beeline_ring::VERSION };
    Some((fd, Memory::new(at, layout)))
}

fn map(fd: c_int, length: usize) -> Option<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, 0) };
    (at != libc::MAP_FAILED).then_some(at.cast())
}

/// Room for a control message with three descriptors, aligned.
type Control = [u64; 8];
const DESCRIPTORS: usize = 3;

fn send_descriptors(socket: c_int, offer: &Offer, descriptors: [c_int; DESCRIPTORS]) -> bool {
    let mut control: Control = [0; 8];
    let mut part = crate::parts::one(core::ptr::from_ref(offer).cast_mut().cast(), size_of::<Offer>());
    let mut message = message(&mut part, &mut control);
    // SAFETY: the message has room for the header and three descriptors.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of_val(&descriptors) as u32) as _;
        libc::CMSG_DATA(header).cast::<[c_int; DESCRIPTORS]>().write_unaligned(descriptors);
        message.msg_controllen = libc::CMSG_SPACE(size_of_val(&descriptors) as u32) as _;
        real::sendmsg(socket, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == size_of::<Offer>() as isize
    }
}

fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast::<c_void>();
    message.msg_controllen = size_of::<Control>() as _;
    message
}

/// take_offer looks into the mailbox, and attaches the session to rings that are what they have to be.
fn take_offer(session: &'static Session, fd: c_int) {
    if session.side().stays.load(Ordering::SeqCst) != 0 {
        session.close_mailbox();
        return;
    }
    if let Some(visitor) = visitor(session).filter(|_| session.side().owners.is_alone()) {
        without_calls(session, || take_offer_of(session, fd, visitor));
    }
}

fn take_offer_of(session: &'static Session, fd: c_int, visitor: c_int) {
    let received = match receive_offer(visitor) {
        // It has connected, but not sent yet.
        Err(libc::EAGAIN) => return,
        other => other.ok(),
    };
    let user = user_of(visitor);
    hidden::dispose(session.visitor.swap(-1, Ordering::AcqRel));
    let Some((offer, descriptors)) = received else { return };
    let genuine = is_from_peer(fd, &offer, user).then_some(()).ok_or(Refusal::Offer);
    match genuine.and_then(|()| accept(session, fd, descriptors)) {
        Ok(()) => {
            offer.list(session);
            session.close_mailbox();
        }
        Err(why) => {
            page::counters().refuse(why);
            descriptors.into_iter().for_each(real::close_quietly);
        }
    }
}

/// visitor is the connection to the mailbox, if there is one.
fn visitor(session: &Session) -> Option<c_int> {
    let known = session.visitor.load(Ordering::Acquire);
    if known >= 0 {
        return Some(known);
    }
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (mailbox, nowhere) = (session.mailbox.load(Ordering::Acquire), core::ptr::null_mut());
    // accept(2) makes a socket and a file before it looks whether anybody has connected.
    if real::poll_one(mailbox, libc::POLLIN) == 0 {
        return None;
    }
    // SAFETY: accept without an address.
    let made = hidden::adopt(unsafe { real::accept4(mailbox, nowhere, core::ptr::null_mut(), flags) })?;
    session.visitor.store(made, Ordering::Release);
    Some(made)
}

fn receive_offer(socket: c_int) -> Result<(Offer, [c_int; DESCRIPTORS]), i32> {
    let mut control: Control = [0; 8];
    // SAFETY: zero is a valid offer.
    let mut offer: Offer = unsafe { zeroed() };
    let mut part = crate::parts::one(core::ptr::from_mut(&mut offer).cast(), size_of::<Offer>());
    let mut message = message(&mut part, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the buffers are this function's.
    let n = real::outcome(unsafe { real::recvmsg(socket, &mut message, flags) })?;
    let descriptors = received_descriptors(&message);
    match <[c_int; DESCRIPTORS]>::try_from(&descriptors[..]) {
        Ok(complete) if n == size_of::<Offer>() => Ok((offer, complete)),
        _ => {
            descriptors.into_iter().for_each(real::close_quietly);
            Err(libc::EPROTO)
        }
    }
}

/// received_descriptors are all that came, so that none is left open.
fn received_descriptors(message: &libc::msghdr) -> Vec<c_int> {
    // SAFETY: the kernel has filled the control buffer; a header lies within it.
    let Some(header) = (unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }) else { return Vec::new() };
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return Vec::new();
    }
    // SAFETY: CMSG_LEN only computes.
    let octets = header.cmsg_len as usize - unsafe { libc::CMSG_LEN(0) } as usize;
    // SAFETY: the data follow the header within the buffer.
    let data = unsafe { libc::CMSG_DATA(header).cast::<c_int>() };
    // SAFETY: as above; as many descriptors as the kernel says.
    (0..octets / size_of::<c_int>()).map(|i| unsafe { data.add(i).read_unaligned() }).collect()
}

/// is_from_peer asks the kernel: the connection that the offer names must be this end's own, and its other end must
/// belong to the user who sent the offer.
fn is_from_peer(fd: c_int, offer: &Offer, user: Option<u32>) -> bool {
    let own = diag::owner(offer.client(), offer.server());
    let peer = diag::owner(offer.server(), offer.client());
    let (Some(own), Some(peer)) = (own, peer) else { return false };
    identity::cookie(fd) == Some(own.cookie) && user == Some(peer.uid)
}

/// accept maps the memory and attaches the session. The descriptors are this function's if it succeeds.
fn accept(session: &'static Session, fd: c_int, [memory, own, peer]: [c_int; DESCRIPTORS]) -> Result<(), Refusal> {
    if !is_event(own) || !is_event(peer) {
        return Err(Refusal::Offer);
    }
    if !Session::reserve() {
        return Err(Refusal::Limit);
    }
    let Some(rings) = map_offered(memory).filter(|rings| !rings.header().is_active()) else {
        Session::unreserve();
        return Err(Refusal::Offer);
    };
    real::close_quietly(memory);
    let (own, peer) = (hidden::adopt(own).unwrap_or(-1), hidden::adopt(peer).unwrap_or(-1));
    let layout = rings.layout;
    session.attach(fd, rings, own, peer);
    if own < 0 || peer < 0 {
        // No room for another descriptor: the kernel's connection goes on.
        session.fall_back();
    }
    // The peer does not use the rings before, and not at all if they are closed by then.
    let is_shared = !session.side().owners.is_alone();
    if is_shared || !session.rings().is_some_and(|rings| rings.header.accept(&layout)) {
        session.close_rings();
    }
    Ok(())
}

/// map_offered maps memory whose size cannot change, and whose header fits its size.
fn map_offered(memory: c_int) -> Option<Memory> {
    let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: fcntl of a descriptor.
    let seals = unsafe { real::fcntl(memory, libc::F_GET_SEALS, 0) };
    if seals < 0 || seals & needed != needed {
        return None;
    }
    // SAFETY: lseek of a descriptor; nobody uses its position.
    let length = usize::try_from(unsafe { libc::lseek(memory, 0, libc::SEEK_END) }).ok()?;
    if !(Layout::bytes(Layout::SMALLEST)..=Layout::bytes(Layout::LARGEST)).contains(&length) {
        return None;
    }
    let at = map(memory, length)?;
    // SAFETY: the mapping has more than four words. The peer may change them, so they are read once.
    let words = core::array::from_fn(|i| unsafe { at.cast::<u32>().add(i).read_volatile() });
    match Layout::check(words, length) {
        Some(layout) => Some(Memory::new(at, layout)),
        None => {
            // SAFETY: no one uses the mapping.
            unsafe { libc::munmap(at.cast(), length) };
            None
        }
    }
}

/// is_event reports whether a descriptor is an eventfd(2): a write to anything else might wait.
fn is_event(fd: c_int) -> bool {
    let path = alloc::format!("/proc/self/fd/{fd}\0");
    let mut target = [0u8; 64];
    // SAFETY: the path ends with a zero octet; the buffer has that many octets.
    let n = unsafe { libc::readlink(path.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
    // SAFETY: fcntl of a descriptor.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    n > 0 && target[..n as usize].starts_with(b"anon_inode:[eventfd]") && flags & libc::O_NONBLOCK != 0
}
